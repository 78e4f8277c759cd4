"""Measure the statistics of a model, in one run or by shards.

Tests: `tests/distributed/test_shards.py`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from onnxq.calibration.blocks import Blocks, BlockSums
from onnxq.calibration.layer_moments import MeasuredLayers
from onnxq.calibration.shard_file import ShardStats
from onnxq.calibration.stats import Stats
from onnxq.data.reading import PLAIN, Reading
from onnxq.data.samples import Samples
from onnxq.errors import DataError, NothingToQuantize
from onnxq.ir import Model, load
from onnxq.progress import Observer, mention
from onnxq.stages.files import open_data
from onnxq.stages.measure import layers_needing_moments, measure_blocks
from onnxq.stages.prepare import prepare
from onnxq.stages.prepared import Prepared
from onnxq.stages.substitution import substitute_layers
from onnxq.text import counted
from onnxq.version import __version__


@dataclass(frozen=True)
class Calibration:
    """The arguments of `onnxq calibrate`; all of it fits a task.

    Attributes:
        model: The float model.
        data: What samples are read from.
        reading: How files that hold no arrays become samples.
        recipe, target, exclude, only: As for `quantize`.
        samples: How many of the samples to use; None for all.

    """

    model: Path
    data: tuple[str, ...]
    reading: Reading = PLAIN
    recipe: str = "auto"
    target: str | None = None
    exclude: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    samples: int | None = None


@dataclass(frozen=True)
class OpenCalibration:
    """A calibration whose model is planned and whose data are open.

    Attributes:
        asked: What was asked for.
        prepared: The model and its plan.
        layers: Layers whose second moments are measured.
        samples: The data.
        blocks: How they are cut.

    """

    asked: Calibration
    prepared: Prepared
    layers: MeasuredLayers
    samples: Samples
    blocks: Blocks

    def measure(self, span: range, observer: Observer) -> BlockSums:
        """Measure some of the blocks."""
        return measure_blocks(self.prepared, self.layers, self.samples, self.blocks, span, observer)

    def measure_whole(self, observer: Observer) -> Stats:
        """Measure all blocks, in this process."""
        whole = self.measure(range(self.blocks.count), observer).whole
        assert whole is not None
        return whole

    def shard(self, number: int, shards: int, observer: Observer) -> ShardStats:
        """Measure a shard, counted from 1.

        Raises:
            DataError: There is no such shard, or there are more shards than blocks.

        """
        if not 1 <= number <= shards:
            raise DataError(f"there is no shard {number} of {shards}", "Shards are counted from 1.")
        check_shards(self.blocks, shards)
        sums = self.measure(self.blocks.of_shard(number - 1, shards), observer)
        return ShardStats(self.origin(shards), number, sums)

    def origin(self, shards: int) -> Mapping[str, Any]:
        """Say what is measured and with what; shards whose origins differ do not belong together."""
        recipe = self.prepared.plan.recipe.to_toml() + f"\n{self.asked.target}"
        return {
            "onnxq": __version__,
            "onnxruntime": ort.__version__,  # whose package may be onnxruntime-gpu
            "numpy": np.__version__,
            "model": self.prepared.identity,
            "recipe": hashlib.sha256(recipe.encode()).hexdigest(),
            "nodes": [list(self.asked.exclude), list(self.asked.only)],
            "reading": json.loads(json.dumps(asdict(self.asked.reading), default=str)),
            "data": [Path(source).name for source in self.asked.data],
            "samples": self.blocks.samples,
            "shards": shards,
        }


def open_calibration(
    asked: Calibration, observer: Observer, given: object = None, model: Model | None = None
) -> OpenCalibration:
    """Load and plan the model, open the data and count the samples.

    Args:
        asked: What to measure.
        observer: Told about each step.
        given: Samples in place of data that are read: an iterable, or a function that gives one.
        model: The float model where it is loaded already; it is changed.

    Raises:
        ModelError, RecipeError, DataError: As for `quantize`.
        NothingToQuantize: No ranges are needed.

    """
    observer.step("load")
    source = model or load(asked.model)
    observer.step("plan")
    left, kept = list(asked.exclude), list(asked.only)
    prepared = prepare(source, asked.recipe, with_data=True, target=asked.target, exclude=left, only=kept)
    prepared = substitute_layers(prepared)
    if not prepared.plan.calibrated():
        raise NothingToQuantize(
            f"recipe {prepared.plan.recipe.name} needs no ranges of {prepared.path}",
            "See every node's reason with `onnxq plan`.",
        )
    samples = open_data(prepared.model, asked.data, given, asked.samples, asked.reading)
    assert samples is not None  # data are required
    for said in samples.ignored:
        mention(said)
    observer.step("calibrate")
    count = samples.count or sum(1 for _ in samples)  # which refuses to read nothing
    return OpenCalibration(asked, prepared, layers_needing_moments(prepared.plan), samples, Blocks(count))


def check_shards(blocks: Blocks, shards: int) -> None:
    """Refuse more shards than there are blocks of samples.

    Raises:
        DataError: There are more.

    """
    if shards > blocks.count:
        raise DataError(
            f"{counted(blocks.samples, 'sample')} make at most {counted(blocks.count, 'shard')}, not {shards}",
            f"Ask for {blocks.count} or fewer.",
        )
