"""Tables about single layers and nodes: engines compared, layers compared, one node explained.

And what `onnxq quantize` makes of one model of a project.

Tables about a whole run belong to `cli/tables.py`.
"""
