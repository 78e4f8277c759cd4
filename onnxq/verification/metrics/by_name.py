"""The table of named metrics.

Tests: `tests/verification/test_metrics_by_name.py`.
"""

from __future__ import annotations

from functools import partial

from onnxq.data.user_function import CALLABLE
from onnxq.errors import DataError
from onnxq.text import did_you_mean
from onnxq.verification.metrics.classes import Agreement, TopClasses, check_classes
from onnxq.verification.metrics.greedy import Greedy, check_ids, continue_texts
from onnxq.verification.metrics.language import Perplexity, check_tokens
from onnxq.verification.metrics.named_metric import NamedMetric, need_nothing
from onnxq.verification.metrics.nearness import Cosine, Psnr
from onnxq.verification.metrics.overlap import Overlap
from onnxq.verification.metrics.ranks import RankCorrelation, check_scores

PERCENT, BOTH_SIGNS = 100.0, 2.0  # spans: 0 to 100, and -1 to 1
METRICS = {
    one.name: one
    for one in (
        NamedMetric("top1", partial(TopClasses, most=1), check_classes("top1"), span=PERCENT),
        NamedMetric("top5", partial(TopClasses, most=5), check_classes("top5"), span=PERCENT),
        NamedMetric("agreement", Agreement, need_nothing, span=PERCENT),
        NamedMetric("cosine", Cosine, need_nothing, span=BOTH_SIGNS),
        NamedMetric("psnr", Psnr, need_nothing),
        NamedMetric("iou", Overlap, need_nothing, span=PERCENT),
        NamedMetric("perplexity", Perplexity, check_tokens, lower_is_better=True),
        NamedMetric("greedy", Greedy, check_ids, prepare=continue_texts, span=PERCENT),
        NamedMetric("spearman", RankCorrelation, check_scores, span=BOTH_SIGNS),
    )
}
# Names of others for metrics
USUAL = {
    **dict.fromkeys(("accuracy", "acc", "top-1", "top_1"), "top1"),
    **dict.fromkeys(("top-5", "top_5"), "top5"),
    **dict.fromkeys(("ppl", "loss"), "perplexity"),
    **dict.fromkeys(("map", "mean-iou", "miou"), "iou"),
    **dict.fromkeys(("cos", "cosine-similarity"), "cosine"),
}


def metric_of_name(source: str) -> NamedMetric | None:
    """Return the metric of a name; None where a function is named instead, as `package.module:function`.

    Raises:
        DataError: It is neither.

    """
    if source in METRICS or CALLABLE.fullmatch(source):
        return METRICS.get(source)
    known = f"Metrics are {', '.join(METRICS)}, or package.module:function."
    hint = did_you_mean(source, METRICS, cutoff=0.6, elsewhere=USUAL) or known
    raise DataError(f"'{source}' is no metric, and does not name a function", hint)
