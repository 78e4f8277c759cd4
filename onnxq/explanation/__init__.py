"""What there is to say about a model and its nodes without changing them.

Figures of a result are in `verification`.
"""
