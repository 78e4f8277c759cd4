"""Texts as samples: files of sentences, tokenizers, and the inputs of encoders and decoders.

What is done with arrays does not belong here, nor does running a model: that has `onnxq.data.recurrent`.
"""
