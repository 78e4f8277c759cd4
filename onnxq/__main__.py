"""`python -m onnxq` is the same as `onnxq`."""

import sys

from onnxq.cli import main

if __name__ == "__main__":
    sys.exit(main())
