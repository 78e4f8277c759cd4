"""The table of named metrics.

Tests: `tests/verification/test_metrics_by_name.py`.
"""

from __future__ import annotations

from functools import partial

from onnxq.verification.metrics.classes import Agreement, TopClasses, check_classes
from onnxq.verification.metrics.greedy import Greedy, check_ids, continue_texts
from onnxq.verification.metrics.language import Perplexity, check_tokens
from onnxq.verification.metrics.named_metric import NamedMetric, need_nothing
from onnxq.verification.metrics.nearness import Cosine, Psnr
from onnxq.verification.metrics.overlap import Overlap
from onnxq.verification.metrics.ranks import RankCorrelation, check_scores

METRICS = {
    one.name: one
    for one in (
        NamedMetric("top1", partial(TopClasses, most=1), check_classes("top1")),
        NamedMetric("top5", partial(TopClasses, most=5), check_classes("top5")),
        NamedMetric("agreement", Agreement, need_nothing),
        NamedMetric("cosine", Cosine, need_nothing),
        NamedMetric("psnr", Psnr, need_nothing),
        NamedMetric("iou", Overlap, need_nothing),
        NamedMetric("perplexity", Perplexity, check_tokens, lower_is_better=True),
        NamedMetric("greedy", Greedy, check_ids, prepare=continue_texts),
        NamedMetric("spearman", RankCorrelation, check_scores),
    )
}
