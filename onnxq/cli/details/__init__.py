"""Tables about single layers and nodes: engines compared, layers compared, one node explained.

Tables about a whole run belong to `cli/tables.py`.
"""
