"""Statistics are a monoid: no order, split or merge changes a count, an extreme or a bin."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from onnxq.calibration.histogram import BINS, LEAST_EXPONENT, Histogram
from onnxq.calibration.statistic import Statistic
from onnxq.calibration.stats import Extremes, Moments, NotFiniteError, Stats, TensorStats, basic_kinds
from onnxq.calibration.stats_file import fingerprint, load_stats, save_stats
from onnxq.calibration.weighted_histogram import WeightedHistogram
from onnxq.errors import DataError, OutputError

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
MIXED = st.one_of(
    arrays(np.float32, st.integers(0, 60), elements=FLOATS),
    arrays(np.float32, st.integers(0, 60), elements=st.floats(-8, 8, width=32)),
    st.builds(
        lambda seed, n, scale: (np.random.default_rng(seed).standard_normal(n) * 10.0**scale).astype(np.float32),
        st.integers(0, 99),
        st.integers(1, 3000),
        st.integers(-30, 30),
    ),
)


def exact(stats: TensorStats) -> tuple[object, ...]:
    """Everything that must not depend on the order."""
    h = stats.histogram
    return stats.count, stats.min, stats.max, h.exponent, h.first, h.zeros, h.counts.tolist()


def naive_histogram(values: np.ndarray) -> tuple[int, int, list[int]]:
    """The definition, with Python's exact integers and floats: least exponent, first bin, counts."""
    exact_values = [float(v) for v in values]
    low, high = min([0.0, *exact_values]), max([0.0, *exact_values])
    k = LEAST_EXPONENT
    while int(high / 2.0**k) - int(low / 2.0**k) >= BINS:
        k += 1
    first, last = int(low / 2.0**k), int(high / 2.0**k)
    counts = [0] * (last - first + 1)
    for v in exact_values:
        counts[int(v / 2.0**k) - first] += 1
    return k, first, counts


@given(MIXED)
def test_histogram_is_its_definition(values):
    h = TensorStats.of(values).histogram
    assert (h.exponent, h.first, h.counts.tolist()) == naive_histogram(values)
    assert h.zeros == np.count_nonzero(values == 0)
    assert len(h.counts) <= BINS


@settings(max_examples=50)
@given(st.lists(MIXED, max_size=5), st.randoms())
def test_order_split_and_merge_change_nothing(batches, random):
    whole = TensorStats.of(np.concatenate([np.zeros(0, np.float32), *batches]))
    one_by_one = TensorStats.of(*batches)
    shuffled = np.random.default_rng(random.randint(0, 99)).permutation(
        np.concatenate([np.zeros(0, np.float32), *batches])
    )
    parts = [TensorStats.of(b) for b in batches] + [TensorStats()]
    random.shuffle(parts)
    while len(parts) > 1:  # a random tree of merges, the empty one among them
        parts.append(parts.pop(random.randrange(len(parts))).merge(parts.pop(random.randrange(len(parts)))))
    for other in (one_by_one, TensorStats.of(shuffled), parts[0]):
        assert exact(other) == exact(whole)
        # sums are float64 of at most 15,000 float32 values: the order may cost a few units of the last place
        absolute = float(np.abs(np.concatenate([np.zeros(0), *batches])).sum()) + 1e-300
        assert abs(other[Moments].total - whole[Moments].total) <= 1e-12 * absolute
        assert other[Moments].squares == pytest.approx(whole[Moments].squares, rel=1e-12)


def test_merge_leaves_both_unchanged():
    one, two = TensorStats.of(np.float32([1, 2])), TensorStats.of(np.float32([-500]))
    before = exact(one), exact(two)
    merged = one.merge(two)
    assert (exact(one), exact(two)) == before
    assert (merged.count, merged.min, merged.max) == (3, -500.0, 2.0)


@given(MIXED)
def test_moments_and_extremes_are_those_of_numpy(values):
    stats = TensorStats.of(values.reshape(1, -1, 1))
    if not values.size:
        assert (stats.count, stats.min, stats.max, stats.mean, stats.second_moment) == (0, 0, 0, 0, 0)
        return
    assert (stats.count, stats.min, stats.max) == (values.size, float(values.min()), float(values.max()))
    wide = values.astype(np.float64)
    assert abs(stats.mean - wide.mean()) <= 1e-12 * np.abs(wide).mean()
    assert stats.second_moment == pytest.approx(np.square(wide).mean(), rel=1e-12, abs=1e-300)


@pytest.mark.parametrize(
    "values",
    [[0.0], [5.0] * 3, [-0.0, 0.0], [1e-45, -1e-45], [1e-38], [3.4e38, -3.4e38], [3.4028235e38], [-1e9, 1.0, 0.5]],
)
def test_special_values(values):
    values = np.float32(values)
    stats = TensorStats.of(values)
    h = stats.histogram
    assert (h.exponent, h.first, h.counts.tolist()) == naive_histogram(values)
    assert h.counts.sum() == len(values)
    edges = h.edges(stats.min, stats.max)
    assert edges[0] <= values.min()
    assert edges[-1] >= values.max()
    assert (np.diff(edges) >= 0).all()
    assert str(stats.min) == str(float(values.min() + 0))  # no minus before a zero


@given(st.lists(MIXED, max_size=4))
def test_statistics_that_share_extremes_are_those_of_each_alone(batches):
    def alone() -> list[Statistic]:
        return [*basic_kinds(), WeightedHistogram([2, 3], axis=0)]

    together, apart = TensorStats(alone()), alone()
    for batch in batches:
        pair = np.stack([batch, -batch])
        together.add(pair)
        for part in apart if batch.size else ():
            part.add(pair)
    for one, other in zip(together, apart, strict=True):
        state = one.arrays()
        assert state.keys() == other.arrays().keys()
        for key, array in other.arrays().items():
            assert (state[key].dtype, state[key].tobytes()) == (array.dtype, array.tobytes())


def test_a_range_that_grows_keeps_at_least_1024_bins_on_its_longer_side():
    stats = TensorStats()
    for exponent in range(-20, 30):
        stats.add(np.float32([2.0**exponent * 1.3]))
        assert len(stats.histogram.counts) > BINS / 2


def test_other_float_types_are_taken_as_float32():
    assert exact(TensorStats.of(np.float16([1.5, -2]))) == exact(TensorStats.of(np.float32([1.5, -2])))
    assert exact(TensorStats.of(np.array([0.1]))) == exact(TensorStats.of(np.float32([0.1])))


@pytest.mark.parametrize(("bad", "kind"), [(np.nan, "NaN"), (np.inf, "infinity"), (-np.inf, "infinity")])
def test_values_that_are_not_finite_are_refused_and_leave_no_trace(bad, kind):
    stats = Stats()
    stats.add("y", np.float32([1, 2]))
    before = exact(stats["y"])
    with pytest.raises(DataError, match=rf"tensor 'y' holds {kind} \(after Sqrt node s, sample 3\)"):
        stats.add("y", np.float32([7, bad, 9]), "after Sqrt node s, sample 3")
    assert exact(stats["y"]) == before
    with pytest.raises(NotFiniteError, match="infinity"):
        TensorStats.of(np.array([1e300]))


def test_stats_of_several_tensors_merge():
    one, two = Stats(), Stats()
    one.add("a", np.float32([1]))
    two.add("a", np.float32([3]))
    two.add("b", np.float32([5]))
    one.samples, two.samples = 1, 2
    merged = one.merge(two)
    assert (merged.names, merged.samples, merged["a"].max, merged["b"].count) == (["a", "b"], 3, 3.0, 1)
    assert one["a"].max == 1.0
    merged.require(["a", "b"])
    with pytest.raises(DataError, match=r"lack 'c'$"):
        merged.require(["a", "c"])
    with pytest.raises(ValueError, match="different kinds"):
        TensorStats([Extremes()]).merge(TensorStats([Moments()]))


# -- on disk ----------------------------------------------------------------------------------------------------


def example() -> Stats:
    stats = Stats(lambda name: (Extremes(), Moments(), Histogram()) if name != "only" else (Extremes(),))
    stats.add("x/1", np.random.default_rng(0).standard_normal(1000))
    stats.add("zero", np.zeros(3, np.float32))
    stats.add("only", np.float32([-1, 4]))
    stats.samples = 2
    return stats


def test_saved_statistics_come_back_and_go_on(tmp_path):
    stats = example()
    print_of = fingerprint("model hash", stats.names)
    save_stats(tmp_path / "s.npz", stats, print_of)
    loaded, found = load_stats(tmp_path / "s.npz", "model hash")
    assert (found, loaded.names, loaded.samples) == (print_of, stats.names, 2)
    for name in ("x/1", "zero"):
        assert exact(loaded[name]) == exact(stats[name])
        assert (loaded[name].mean, loaded[name].second_moment) == (stats[name].mean, stats[name].second_moment)
    assert loaded["only"][Extremes].high == 4
    assert Moments not in loaded["only"]
    both = loaded.merge(stats)
    assert both["x/1"].count == 2000
    save_stats(tmp_path / "t.npz", loaded, found)
    assert (tmp_path / "t.npz").read_bytes() == (tmp_path / "s.npz").read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["s.npz", "t.npz"]


def test_empty_statistics_can_be_saved(tmp_path):
    save_stats(tmp_path / "s.npz", Stats(), "none")
    assert load_stats(tmp_path / "s.npz")[0].names == []


def test_statistics_of_another_model_or_tensor_set_are_refused(tmp_path):
    stats = example()
    save_stats(tmp_path / "s.npz", stats, fingerprint("A", stats.names))
    with pytest.raises(DataError, match="belong to another model"):
        load_stats(tmp_path / "s.npz", "B")
    save_stats(tmp_path / "s.npz", stats, fingerprint("A", ["x/1"]), force=True)
    with pytest.raises(DataError, match="belong to another model"):
        load_stats(tmp_path / "s.npz", "A")
    assert fingerprint("A", ["b", "a"]) == fingerprint("A", ["a", "b"]) != fingerprint("A", ["ab"])


def test_files_in_the_way_or_of_another_kind(tmp_path):
    path = tmp_path / "s.npz"
    save_stats(path, example(), "f")
    with pytest.raises(OutputError, match="exists already"):
        save_stats(path, example(), "f")
    with pytest.raises(OutputError, match="cannot be written"):
        save_stats(tmp_path / "no" / "s.npz", example(), "f")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="holds no statistics"):
        load_stats(path)
    np.savez(path, image=np.zeros(3))
    with pytest.raises(DataError, match="holds no statistics"):
        load_stats(path)
    path.write_bytes(whole)
    with np.load(path) as archive:
        arrays = dict(archive)
    arrays["extremes.range.owners"] += 7
    np.savez(path, **arrays)
    with pytest.raises(DataError, match="holds no statistics"):
        load_stats(path)
    np.savez(path, format=np.array([{}], dtype=object))
    with pytest.raises(DataError, match="holds no statistics"):
        load_stats(path)
    path.write_text("{}")  # which NumPy takes for a pickled object, and says how to load it
    with pytest.raises(DataError, match=r"holds no statistics: it is no \.npz file"):
        load_stats(path)
    with pytest.raises(DataError, match="does not exist"):
        load_stats(tmp_path / "absent.npz")
