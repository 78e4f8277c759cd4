"""Texts as samples: files of sentences, tokenizers, and the inputs of encoders and decoders.

Work on arrays does not belong here, nor does running a model: that is in `onnxq.data.recurrent`.
"""
