"""Pictures as samples: which files, how they are decoded, resized and normalised, and where that is said.

Needs the extra `images`. Samples that are arrays already are read by `npz` and `readers`.
"""
