"""Steps that several pipelines share: preparing, measuring, replanning, finishing.

The order of steps is in `pipeline`.
"""
