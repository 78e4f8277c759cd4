"""Attention whose products stay in float, written as one operator of onnxruntime.

`sizes` computes what depends on sizes alone, `region` finds a part of a graph, `group_query_attention` is the pass.
"""
