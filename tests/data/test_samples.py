"""Every form of data, cut into the same samples; every misfit refused by a sentence that names input and file."""

from __future__ import annotations

import itertools
import sys
import zipfile
from bisect import bisect_left
from io import BytesIO
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto

from onnxq.data import npz
from onnxq.data.samples import InputSpec, Samples, few_samples, list_sources, open_samples, spread_samples, wrap_samples
from onnxq.errors import DataError
from onnxq.progress import Progress, following

IMAGE = InputSpec("image", TensorProto.FLOAT, ("batch", 2, 3))
IDS = InputSpec("ids", TensorProto.INT64, ("batch", "seq"))
MASK = InputSpec("mask", TensorProto.INT64, ("batch", "seq"))


def numbers(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def save(path: Path, **arrays: np.ndarray) -> Path:
    np.savez(path, **arrays)
    return path


def shapes(samples) -> list[tuple[int, ...]]:
    return [next(iter(s.values())).shape for s in samples]


def refusal(*sources, inputs=(IMAGE,)) -> DataError:
    with pytest.raises(DataError) as caught:
        list(open_samples([str(s) for s in sources], inputs))
    assert caught.value.hint
    return caught.value


# -- cutting ----------------------------------------------------------------------------------------------------


def test_own_rank_is_batched_along_the_first_axis(tmp_path):
    data = numbers(5, 2, 3)
    samples = open_samples([save(tmp_path / "a.npz", image=data)], [IMAGE])
    assert samples.count == 5
    np.testing.assert_array_equal(np.concatenate([s["image"] for s in samples]), data)
    assert shapes(samples) == [(1, 2, 3)] * 5  # a second pass starts anew
    assert samples.description == "5 samples from a.npz"


def test_one_rank_more_is_a_stack(tmp_path):
    data = numbers(3, 4, 2, 3)
    samples = open_samples([save(tmp_path / "a.npz", image=data)], [IMAGE])
    assert shapes(samples) == [(4, 2, 3)] * 3
    np.testing.assert_array_equal(next(iter(samples))["image"], data[0])


def test_a_fixed_batch_is_cut_whole_and_the_rest_is_mentioned(tmp_path):
    spec = InputSpec("image", TensorProto.FLOAT, (4, 2, 3))
    samples = open_samples([save(tmp_path / "a.npz", image=numbers(10, 2, 3))], [spec])
    assert shapes(samples) == [(4, 2, 3)] * 2
    assert samples.description == "2 samples from a.npz (2 rows left over by the model's fixed batch)"
    few = refusal(save(tmp_path / "b.npz", image=numbers(3, 2, 3)), inputs=[spec])
    assert "'image' takes batches of 4" in few.message
    assert "b.npz has 3 rows" in few.message


def test_stack_and_batch_may_stand_side_by_side(tmp_path):
    path = save(tmp_path / "a.npz", ids=np.ones((3, 7), np.int64), mask=np.ones((3, 1, 7), np.int64))
    assert [(s["ids"].shape, s["mask"].shape) for s in open_samples([path], [IDS, MASK])] == [((1, 7), (1, 7))] * 3


def test_scalars_and_unknown_ranks_are_whole(tmp_path):
    scalar, unknown = InputSpec("s", TensorProto.FLOAT, ()), InputSpec("u", TensorProto.FLOAT, None)
    path = save(tmp_path / "a.npz", s=np.float32(3), u=numbers(2, 2))
    (sample,) = open_samples([path], [scalar, unknown])
    assert sample["s"].shape == ()
    assert sample["u"].shape == (2, 2)
    stacked = open_samples([save(tmp_path / "b.npz", s=numbers(4))], [scalar])
    assert [float(s["s"]) for s in stacked] == [0, 1, 2, 3]


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("order", ["C", "F"])
def test_compressed_and_column_major_files_read_the_same(tmp_path, write, order):
    data = np.random.default_rng(0).standard_normal((6, 2, 3)).astype(">f4", order=order)
    write(tmp_path / "a.npz", image=data)
    read = [s["image"] for s in open_samples([tmp_path / "a.npz"], [IMAGE])]
    np.testing.assert_array_equal(np.concatenate(read), data)
    assert {a.dtype for a in read} == {np.dtype(np.float32)}
    assert all(a.flags.c_contiguous for a in read)


def test_rows_are_read_as_they_are_asked_for(tmp_path):
    path = save(tmp_path / "a.npz", image=numbers(1000, 2, 3))
    whole = path.read_bytes()
    path.write_bytes(whole.replace(numbers(1000, 2, 3)[999].tobytes(), b"\x00\x00\xc0\x7f" * 6))  # NaN in the last row
    stream = iter(open_samples([path], [IMAGE]))
    assert next(stream)["image"].shape == (1, 2, 3)  # the damage behind it is not seen yet
    with pytest.raises(DataError):
        list(stream)


def test_limit_and_its_description(tmp_path):
    samples = open_samples([save(tmp_path / "a.npz", image=numbers(9, 2, 3))], [IMAGE])
    assert shapes(samples.limit(4).limit(6)) == [(1, 2, 3)] * 4
    assert samples.limit(4).description == "the first 4 of 9 samples from a.npz"
    assert samples.limit(20).count == 9
    with pytest.raises(DataError, match="0 samples are asked for"):
        samples.limit(0)


def test_samples_from_all_over_the_data(tmp_path):
    folder = tmp_path / "files"
    folder.mkdir()
    for index in range(10):
        save(folder / f"s_{index}.npz", ids=np.full((1, 2), index, np.int64))
    some = open_samples([folder], [IDS]).spread(4)
    (folder / "s_1.npz").unlink()  # it is never read
    assert [int(sample["ids"][0, 0]) for sample in some] == [0, 2, 5, 7] == some.numbers
    assert (some.count, some.description.split(" from ")[0]) == (4, "4 of 10 samples")
    assert [int(sample["ids"][0, 0]) for sample in some] == some.numbers  # once more
    one = open_samples([save(tmp_path / "a.npz", image=numbers(9, 2, 3))], [IMAGE])
    assert [float(sample["image"].ravel()[0]) for sample in one.limit(6).spread(2)] == [0.0, 18.0]
    assert one.spread(20).count == 9
    with pytest.raises(DataError, match="0 samples are asked for"):
        one.spread(0)


# -- places -----------------------------------------------------------------------------------------------------


def test_a_folder_in_natural_order_with_shapes_that_differ(tmp_path):
    for length in (2, 10, 1):
        save(tmp_path / f"s_{length}.npz", ids=np.zeros((1, length), np.int64))
    assert shapes(open_samples([tmp_path], [IDS])) == [(1, 1), (1, 2), (1, 10)]


def test_npy_files_for_a_single_input(tmp_path):
    np.save(tmp_path / "x.npy", numbers(2, 2, 3))
    np.save(tmp_path / "y.npy", numbers(1, 2, 2, 3))
    assert shapes(open_samples([tmp_path], [IMAGE])) == [(1, 2, 3), (1, 2, 3), (2, 2, 3)]
    assert open_samples([tmp_path / "x.npy", tmp_path / "y.npy"], [IMAGE]).description == "3 samples from x.npy, y.npy"


def test_npy_files_named_like_the_inputs(tmp_path):
    np.save(tmp_path / "ids.npy", np.ones((2, 3), np.int64))
    np.save(tmp_path / "mask.npy", np.zeros((2, 3), np.int64))
    assert [sorted(s) for s in open_samples([tmp_path], [IDS, MASK])] == [["ids", "mask"]] * 2
    (tmp_path / "mask.npy").unlink()
    assert "no array for input 'mask'" in refusal(tmp_path, inputs=[IDS, MASK]).message


def write_test_data(folder: Path, *tensors: tuple[str, np.ndarray]) -> None:
    folder.mkdir()
    for index, (name, array) in enumerate(tensors):
        (folder / f"input_{index}.pb").write_bytes(onnx.numpy_helper.from_array(array, name).SerializeToString())


def test_onnx_test_data_by_name_and_by_position(tmp_path):
    one, two = np.full((1, 4), 1, np.int64), np.full((1, 4), 2, np.int64)
    write_test_data(tmp_path / "test_data_set_0", ("mask", two), ("ids", one))
    write_test_data(tmp_path / "test_data_set_1", ("", one), ("", two))
    samples = open_samples([tmp_path], [IDS, MASK])
    assert [(s["ids"][0, 0], s["mask"][0, 0]) for s in samples] == [(1, 2), (1, 2)]
    assert open_samples([tmp_path / "test_data_set_1"], [IDS, MASK]).count == 1
    (tmp_path / "test_data_set_1" / "input_0.pb").write_bytes(b"\xff\xff\xff")
    assert "input_0.pb is no tensor" in refusal(tmp_path, inputs=[IDS, MASK]).message


@pytest.mark.parametrize(("most", "limit", "told"), [(5, None, False), (6, None, True), (None, 6, False)])
def test_a_function_that_goes_on_and_on_is_named_while_it_is_read(monkeypatch, most, limit, told):
    class Talk(Progress):
        def mention(self, sentence: str) -> None:
            said.append(sentence)

    said: list[str] = []
    monkeypatch.setattr("onnxq.data.samples.MANY", 5)
    numbers = itertools.count() if most is None else range(most)
    samples = wrap_samples(lambda: ({"ids": np.zeros((1, 1), np.int64)} for _ in numbers), [IDS])
    with following(Talk()):
        for _ in range(2 if most else 1):  # it is said once
            assert len(list(samples if limit is None else samples.limit(limit))) == (most or limit)
    assert said == ["Python gave 5 samples and goes on: --samples N reads the first N"] * told


def test_a_function_of_a_module_in_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "my_calibration.py").write_text(
        "import numpy as np\n"
        "def three():\n    for n in (1, 2, 3):\n        yield {'ids': np.zeros((1, n), np.int64)}\n"
        "two = [{'ids': np.zeros((1, 1), np.int64)}] * 2\n"
        "once = iter(two)\n"
        "def broken():\n    yield {'ids': np.zeros((1, 1), np.int64)}\n    raise KeyError('no image')\n"
        "def bare():\n    yield np.zeros((1, 1))\n"
        "def nothing():\n    return []\n"
        "def forgets():\n    np.zeros(3)\n"
        "def stacks():\n    return {'ids': np.zeros((9, 1), np.int64)}\n"
        "number = 3\n"
        "def leaves():\n    raise SystemExit(0)\n"
        "def leaves_later():\n    yield from two\n    raise SystemExit(0)\n"
        "def late():\n    from beside_calibration import count\n    return two * count\n"
    )
    (tmp_path / "beside_calibration.py").write_text("count = 4\n")
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    monkeypatch.setattr(sys, "path", list(path))
    samples = open_samples(["my_calibration:three"], [IDS])
    assert shapes(samples) == shapes(samples) == [(1, 1), (1, 2), (1, 3)]
    assert samples.count is None
    assert samples.description == "samples from my_calibration:three"
    assert samples.limit(2).description == "up to 2 samples from my_calibration:three"
    assert samples.describe(3) == "3 samples from my_calibration:three"
    assert samples.limit(2).describe(1) == "1 sample from my_calibration:three"
    assert open_samples(["my_calibration:two"], [IDS]).count == 2
    assert len(list(open_samples(["my_calibration:late"], [IDS]))) == 8  # it imports when it is called
    assert sys.path == [*path, str(tmp_path)]  # behind all others: nothing there hides a package
    for source, words in {
        "my_calibration:once": "can be read only once",
        "my_calibration:broken": "failed: KeyError: 'no image'",
        "my_calibration:leaves": "failed: SystemExit: 0",
        "my_calibration:leaves_later": "failed: SystemExit: 0",
        "my_calibration:bare": "gives an array for a sample, not a dictionary",
        "my_calibration:forgets": "my_calibration:forgets returns None, not samples",
        "my_calibration:stacks": "my_calibration:stacks returns a dict, not samples",
        "my_calibration:number": "my_calibration:number is an int, not samples",
        "my_calibration:nothing": "there are no samples in my_calibration:nothing",
        "my_calibration:absent": "there is no 'absent' in ",
        "no_such_module:f": "No module named 'no_such_module'",
    }.items():
        assert words in refusal(source, inputs=[IDS]).message
    assert refusal("my_calibration:tree", inputs=[IDS]).hint == "Did you mean 'three'?"


def test_python_samples_are_checked_too():
    good = {"ids": [[1, 2, 3]], "_label": 7}
    (sample,) = wrap_samples([good], [IDS])
    assert sample["ids"].dtype == np.int64
    assert list(sample) == ["ids"]
    assert wrap_samples([good] * 3, [IDS]).count == 3
    with pytest.raises(DataError, match="can be read only once"):
        wrap_samples(iter([good]), [IDS])
    with pytest.raises(DataError, match="samples is an int, not samples"):
        wrap_samples(3, [IDS])
    with pytest.raises(DataError, match=r"gives an array for a sample") as caught:
        list(wrap_samples([numbers(1, 2, 3)], [IMAGE]))
    assert caught.value.hint == 'Give each as {"image": array}, where image is float32[batch, 2, 3].'


def test_arrays_in_memory_are_cut_as_those_in_files():
    data = numbers(5, 2, 3)
    for stacked in (data, {"image": data, "_label": np.arange(5)}):
        samples = wrap_samples(stacked, [IMAGE])
        assert (samples.count, samples.description) == (5, "5 samples from Python")
        np.testing.assert_array_equal(np.concatenate([s["image"] for s in samples]), data)
        assert shapes(samples) == [(1, 2, 3)] * 5
    np.testing.assert_array_equal(samples.labels()["_label"][0], np.arange(5))
    with pytest.raises(DataError, match="samples holds one array, and the model has 2 inputs"):
        wrap_samples(numbers(3, 4), [IDS, MASK])
    with pytest.raises(DataError, match="samples hold rows of different lengths"):
        wrap_samples({"ids": [[1], [2, 3]]}, [IDS])
    with pytest.raises(DataError, match="samples has 'picture', which is no input of the model"):
        wrap_samples({"picture": data}, [IMAGE])


@pytest.mark.parametrize("values", [numbers(2, 2, 3), {"image": numbers(2, 2, 3)}, [numbers(2, 3)], 3, [None]])
def test_values_in_place_of_files_are_named(values):
    with pytest.raises(DataError, match=r"data names files, and (an array|a dict|an int|None) is given") as caught:
        open_samples(values, [IMAGE])
    assert "samples={'INPUT': array}" in caught.value.hint
    assert list_sources(None) == ()


@pytest.mark.parametrize(("values", "what"), [(["a", "b"], "strings"), ([b"a"], "strings")])
def test_text_for_an_input_of_numbers_is_named(tmp_path, values, what):
    error = refusal(save(tmp_path / "a.npz", image=np.array(values)[:, None, None].repeat(2, 1).repeat(3, 2)))
    assert error.message == f"input 'image' takes float32, a.npz gives {what}"
    assert "Sentences are read from .txt" in error.hint


def test_files_of_a_folder_that_are_not_read_are_named(tmp_path):
    save(tmp_path / "A.NPZ", image=numbers(2, 2, 3))
    (tmp_path / "A.NPZ.npz").rename(tmp_path / "A.NPZ")
    for name in ("a.jpeg", "b.jpeg", "notes.md", ".DS_Store"):
        (tmp_path / name).touch()
    samples = open_samples([str(tmp_path)], [IMAGE])
    assert samples.count == 2
    assert samples.notes == (f"{tmp_path}: only .npz and .npy files are read there, not 2 .jpeg and 1 .md files",)


# -- refusals ---------------------------------------------------------------------------------------------------


def test_unknown_and_missing_names(tmp_path):
    error = refusal(save(tmp_path / "a.npz", images=numbers(2, 2, 3)))
    assert error.message == "a.npz has 'images', which is no input of the model"
    assert "Did you mean 'image'?" in error.hint
    error = refusal(save(tmp_path / "b.npz", _y=numbers(2)))
    assert error.message == "b.npz has no array for input 'image' (float32[batch, 2, 3])"
    labelled = open_samples([save(tmp_path / "c.npz", _y=numbers(9), image=numbers(2, 2, 3))], [IMAGE])
    assert [list(s) for s in labelled] == [["image"]] * 2


def test_rank_and_fixed_dimensions(tmp_path):
    error = refusal(save(tmp_path / "a.npz", image=numbers(6)))
    assert error.message == "input 'image' has rank 3 (float32[batch, 2, 3]), a.npz gives rank 1 [6]"
    error = refusal(save(tmp_path / "b.npz", image=numbers(5, 2, 4)))
    assert "input 'image' has 3 in dimension 2" in error.message
    assert "b.npz gives 4" in error.message


def test_numbers_of_samples_must_agree(tmp_path):
    path = save(tmp_path / "a.npz", ids=np.ones((3, 7), np.int64), mask=np.ones((4, 7), np.int64))
    message = refusal(path, inputs=[IDS, MASK]).message
    assert "disagree in the number of samples: 3 for 'ids' [3, 7], 4 for 'mask' [4, 7]" in message


def test_axes_of_different_names_are_no_samples(tmp_path):
    """Four texts and one picture are one sample; where both are as many, each row is one."""
    text, picture = (
        InputSpec("text", TensorProto.INT64, ("texts", "n")),
        InputSpec("picture", TensorProto.FLOAT, ("pictures", 2)),
    )
    path = save(tmp_path / "a.npz", text=np.ones((4, 7), np.int64), picture=np.ones((1, 2), np.float32))
    (sample,) = open_samples([path], [text, picture])
    assert {name: array.shape for name, array in sample.items()} == {"text": (4, 7), "picture": (1, 2)}
    path = save(tmp_path / "b.npz", text=np.ones((3, 7), np.int64), picture=np.ones((3, 2), np.float32))
    assert [sample["text"].shape for sample in open_samples([path], [text, picture])] == [(1, 7)] * 3
    more = InputSpec("more", TensorProto.INT64, ("texts", "m"))
    path = save(
        tmp_path / "c.npz", text=np.ones((4, 7), np.int64), more=np.ones((3, 7), np.int64), picture=np.ones((1, 2))
    )
    assert "disagree" in refusal(path, inputs=[text, more, picture]).message
    path = save(tmp_path / "d.npz", text=np.ones((2, 4, 7), np.int64), picture=np.ones((1, 2)))
    assert "disagree" in refusal(path, inputs=[text, picture]).message


def test_a_fixed_first_axis_takes_part_in_one_sample(tmp_path):
    """A graph: values of atoms, pairs of them as [2, pairs], and one temperature."""
    atoms = InputSpec("atoms", TensorProto.FLOAT, ("atoms", 3))
    edges = InputSpec("edges", TensorProto.INT64, (2, "pairs"))
    near = InputSpec("near", TensorProto.FLOAT, ("pairs",))
    warm = InputSpec("warm", TensorProto.FLOAT, ())
    values = {"atoms": np.ones((5, 3)), "near": np.ones(9), "warm": np.float32(1)}
    path = save(tmp_path / "a.npz", edges=np.ones((2, 9), np.int64), **values)
    (sample,) = open_samples([path], [atoms, edges, near, warm])
    assert {name: array.shape for name, array in sample.items()} == {
        "atoms": (5, 3),
        "edges": (2, 9),
        "near": (9,),
        "warm": (),
    }
    path = save(tmp_path / "b.npz", edges=np.ones((4, 9), np.int64), **values)
    assert "disagree" in refusal(path, inputs=[atoms, edges, near, warm]).message


def test_steps_of_one_state_are_one_sample(tmp_path):
    """The axis that is left open counts steps: the state is of all of them."""
    steps = InputSpec("steps", TensorProto.FLOAT, ("steps", 8))
    state = InputSpec("state", TensorProto.FLOAT, (1, 1, 4))
    path = save(tmp_path / "a.npz", steps=np.ones((40, 8)), state=np.ones((1, 1, 4)))
    (sample,) = open_samples([path], [steps, state])
    assert {name: array.shape for name, array in sample.items()} == {"steps": (40, 8), "state": (1, 1, 4)}
    path = save(tmp_path / "b.npz", steps=np.ones((40, 8)), state=np.ones((3, 1, 4)))
    assert "disagree" in refusal(path, inputs=[steps, state]).message


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300])
def test_values_that_are_not_finite(tmp_path, bad):
    data = np.zeros((3, 2, 3))
    data[2, 1, 0] = bad
    error = refusal(save(tmp_path / "a.npz", image=data))
    kind = "NaN" if np.isnan(bad) else "infinity"
    assert error.message == f"input 'image' holds {kind} at [0, 1, 0] in a.npz, sample 2"


@pytest.mark.parametrize(
    ("given", "wanted", "fits"),
    [
        (np.float64, TensorProto.FLOAT, True),
        (np.float16, TensorProto.FLOAT, True),
        (np.float32, TensorProto.FLOAT16, True),
        (np.uint8, TensorProto.FLOAT, True),
        (np.bool_, TensorProto.FLOAT, True),
        (np.int64, TensorProto.FLOAT, False),
        (np.int64, TensorProto.INT32, True),
        (np.int32, TensorProto.INT64, True),
        (np.int64, TensorProto.BOOL, True),
        (np.bool_, TensorProto.INT64, True),
        (np.float32, TensorProto.INT64, False),
        (np.complex64, TensorProto.FLOAT, False),
        (np.str_, TensorProto.FLOAT, False),
    ],
)
def test_casts(tmp_path, given, wanted, fits):
    spec = InputSpec("x", wanted, ("n",))
    path = save(tmp_path / "a.npz", x=np.array([0, 1, 1]).astype(given))
    if fits:
        assert {s["x"].dtype for s in open_samples([path], [spec])} == {spec.numpy_dtype}
    else:
        assert f"input 'x' takes {spec.numpy_dtype}, a.npz" in refusal(path, inputs=[spec]).message


def test_an_integer_that_does_not_fit_is_refused_not_wrapped(tmp_path):
    spec = InputSpec("x", TensorProto.UINT8, ("n",))
    error = refusal(save(tmp_path / "a.npz", x=np.array([255, 256])), inputs=[spec])
    assert "with the value 256, which does not fit" in error.message


def test_files_that_cannot_be_read(tmp_path):
    text = tmp_path / "a.txt"
    text.write_text("hello")
    junk = tmp_path / "junk.npz"
    junk.write_bytes(b"PK not really")
    short = save(tmp_path / "short.npz", image=numbers(500, 2, 3))
    with zipfile.ZipFile(short, "w") as archive:
        archive.writestr("image.npy", npy_bytes(numbers(500, 2, 3))[:-7])
    pickled = tmp_path / "pickled.npz"
    np.savez(pickled, image=np.array([[1, 2], [3]], dtype=object))
    empty = tmp_path / "empty"
    empty.mkdir()
    for path, words in {
        text: "is text, and onnxq reads arrays",
        junk: "junk.npz cannot be read",
        short: "ends early",
        pickled: "pickled array of Python objects",
        empty: "has no samples",
        tmp_path / "absent.npz": "absent.npz does not exist",
        save(tmp_path / "none.npz", image=numbers(0, 2, 3)): "there are no samples in",
    }.items():
        assert words in refusal(path).message, path
    with pytest.raises(DataError, match="there are no samples"):
        open_samples([], [IMAGE])


def npy_bytes(array: np.ndarray) -> bytes:
    file = BytesIO()
    np.save(file, array)
    return file.getvalue()


# -- random -----------------------------------------------------------------------------------------------------


class Tensor:
    """An array of another library that NumPy may not read."""

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        raise RuntimeError("Can't call numpy() on Tensor that requires grad.")


def test_what_gives_no_array_is_told_how_a_tensor_becomes_one():
    specs = [InputSpec("x", TensorProto.FLOAT, (None, None))]
    for odd in ([{"x": Tensor()}], {"x": Tensor()}, [{"x": object()}]):
        with pytest.raises(
            DataError, match=r"gives no array: Can't call numpy|is a Python object of type object"
        ) as caught:
            list(wrap_samples(odd, specs))
        assert "tensor.detach().cpu().numpy()" in caught.value.hint


def test_a_mask_of_numpy_is_not_lost_without_a_word():
    specs = [InputSpec("x", TensorProto.FLOAT, (None, None))]
    values = np.arange(4, dtype=np.float32).reshape(2, 2)
    for odd in ([{"x": np.ma.masked_greater(values, 2)}], {"x": np.ma.masked_greater(values, 2)}):
        with pytest.raises(DataError, match="is a masked array, whose mask would be lost") as caught:
            list(wrap_samples(odd, specs))
        assert "array.filled(0)" in caught.value.hint
    assert len(list(wrap_samples([{"x": np.ma.masked_greater(values, 9)}], specs))) == 1


def test_a_sample_whose_rows_differ_in_length_is_refused():
    specs = [InputSpec("x", TensorProto.FLOAT, (None, None))]
    with pytest.raises(DataError, match=r"input 'x' in samples\[0\] is a list of rows of different lengths"):
        list(wrap_samples([{"x": [[1.0, 2.0], [3.0]]}], specs))


@pytest.mark.parametrize(("limit", "most", "count"), [(3, 1000, 3), (0, 1000, 1), (9, 12, 2), (9, 11, 1), (9, 1, 1)])
def test_few_samples_are_few_and_small(limit, most, count):
    samples = [{"image": numbers(1, 2, 3)}] * 4
    assert len(few_samples(samples, limit, most)) == count


@given(total=st.integers(1, 200), limit=st.integers(1, 30), size=st.integers(1, 9), most=st.integers(1, 90))
def test_few_samples_are_spread_over_all(total, limit, size, most):
    """Where the data are sorted by class, the first ones are of one class."""
    alive = 0

    def numbered():
        nonlocal alive
        for index in range(total):
            alive += 1
            yield {"image": np.full(size, index)}

    taken = spread_samples(numbered(), limit, most)
    found = [int(sample["image"][0]) for sample in taken.values()]
    assert found == list(taken)
    assert alive == total, "read once"
    count = min(limit, total, max(most // size, 1))
    assert found[0] == 0
    assert count / 2 <= len(found) <= count
    steps = np.diff([*found, total])
    assert steps.max() <= 3 * steps.min() + 2, "evenly"


def test_as_many_samples_as_are_needed_are_taken_however_large_they_are():
    samples = [{"image": numbers(100)}] * 9
    assert len(spread_samples(samples, 8, 150, 2)) == 2


def test_names_of_arrays_are_strings():
    with pytest.raises(DataError, match=r"samples\[0\] has 1 for the name of an array"):
        list(wrap_samples([{1: [1, 2, 3]}], [IDS]))


def test_files_are_no_samples_but_data():
    with pytest.raises(DataError) as error:
        wrap_samples("calib.npz", [IDS])
    assert error.value.hint == "Give files as data."


def test_one_file_needs_no_list(tmp_path):
    path = save(tmp_path / "a.npz", ids=np.ones((5, 3), np.int64))
    for one in (path, str(path)):
        assert open_samples(one, [IDS]).description == "5 samples from a.npz"


@pytest.mark.parametrize("limit", [None, 8])
def test_data_that_are_fewer_when_they_are_read_again(limit):
    """What was chosen by the places of samples in a first pass would be others in the second."""
    counts = iter([7, 7, 4, 0])
    samples = wrap_samples(lambda: ({"ids": [[1, 2, 3]]} for _ in range(next(counts))), [IDS], "mine:samples")
    samples = samples if limit is None else samples.limit(limit)
    assert [len(list(samples)), len(list(samples))] == [7, 7]
    for count in (4, 0):
        with pytest.raises(DataError, match=f"mine:samples gave 7 samples before, and {count} now"):
            list(samples)


def test_a_part_of_the_samples_may_be_read():
    samples = wrap_samples(lambda: ({"ids": [[1, 2, 3]]} for _ in range(7)), [IDS])
    next(iter(samples))
    assert len(list(samples.limit(3))) == 3
    assert len(list(samples)) == 7


def test_what_is_kept_of_compressed_arrays_does_not_grow_with_their_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inflated, array = npz._Inflated, np.arange(24, dtype=np.float32).reshape(4, 2, 3)
    monkeypatch.setattr(npz, "MOST_KEPT", inflated.reserved + 300)  # two of these arrays
    before = inflated.reserved
    for name in "abcde":
        np.savez_compressed(tmp_path / f"{name}.npz", image=array + ord(name))
    opened = [npz.read_npz(tmp_path / f"{name}.npz", [IMAGE]) for name in "abcde"]
    assert 0 < inflated.reserved - before <= 300
    for name, source in zip("abcde", opened, strict=True):
        for _ in range(2):  # from the file, and from memory where it is kept
            got = np.concatenate([sample["image"] for sample in source.read()])
            np.testing.assert_array_equal(got, array + ord(name))
            for sample in source.read():
                sample["image"][...] = 0  # a sample belongs to who asked for it
    del opened, source
    assert inflated.reserved == before


def test_hidden_files_of_a_folder_are_no_data(tmp_path):
    """macOS puts `._a.npz` beside `a.npz` on disks of others, and no reader takes it for an archive."""
    np.savez(tmp_path / "a.npz", x=np.ones((3, 4), np.float32))
    (tmp_path / "._a.npz").write_bytes(b"\0\5\x16\7")
    assert sum(1 for _ in open_samples([str(tmp_path)], [InputSpec("x", TensorProto.FLOAT, (None, 4))])) == 3


def test_an_array_with_fields_is_named(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((3, 4), [("low", "f4"), ("high", "f4")]))
    inputs = [InputSpec("x", TensorProto.FLOAT, (None, 4))]
    with pytest.raises(DataError, match="has fields: low, high") as error:
        list(open_samples([str(tmp_path / "a.npz")], inputs))
    assert "structured_to_unstructured(array)" in error.value.hint
    np.save(tmp_path / "b.npy", np.zeros(3, [("x", "f4", 4), ("y", "i8")]))
    with pytest.raises(DataError, match="has fields: x, y") as error:
        open_samples([str(tmp_path / "b.npy")], inputs)
    assert "array['x']" in error.value.hint


def test_an_archive_without_arrays_is_named(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("archive/data.pkl", b"")
    with pytest.raises(DataError, match="a ZIP archive, and holds no arrays") as error:
        open_samples([str(tmp_path / "a.npz")], [InputSpec("x", TensorProto.FLOAT, (None, 4))])
    assert "numpy.savez('data.npz', x=array)" in error.value.hint


def test_parts_of_parts_keep_their_places():
    samples = wrap_samples([{"image": np.full((1, 2, 3), n, np.float32)} for n in range(40)], [IMAGE])
    some = samples.spread(10)
    for part, places in (
        (some.limit(3), [0, 4, 8]),
        (some.spread(5), [0, 8, 16, 24, 32]),
        (samples.between(10, 20).limit(3), [10, 11, 12]),
        (samples.between(10, 20).spread(2), [10, 15]),
    ):
        assert [int(sample["image"].flat[0]) for sample in part] == places == list(part.numbers or [])
        assert part.count == len(places)


def test_many_places_among_very_many_samples_are_found_at_once(monkeypatch):
    looked = []
    monkeypatch.setattr("onnxq.data.samples.bisect_left", lambda *given: looked.append(1) or bisect_left(*given))
    source = npz.Source("many", lambda: ({"x": np.zeros(1, np.float32)} for _ in range(2000)), 2000)
    part = Samples([source], [InputSpec("x", TensorProto.FLOAT, (1,))], "many").spread(1000)
    assert sum(1 for _ in part) == 1000
    assert len(looked) < 5000  # not for each sample as often as there are places


def test_another_order_of_bytes_is_no_conversion(tmp_path):
    samples = open_samples(save(tmp_path / "a.npz", image=numbers(3, 2, 3).astype(">f4")), [IMAGE])
    assert len(list(samples)) == 3
    assert samples.converted == {}


def test_an_archive_with_a_password_is_named(tmp_path):
    path = save(tmp_path / "a.npz", image=numbers(3, 2, 3))
    raw = bytearray(path.read_bytes())
    raw[raw.find(b"PK\3\4") + 6] |= 1
    raw[raw.find(b"PK\1\2") + 8] |= 1
    path.write_bytes(raw)
    assert "is encrypted" in refusal(path).message


def test_arrays_beside_test_data_sets_are_named(tmp_path):
    (tmp_path / "test_data_set_0").mkdir()
    onnx.save_tensor(onnx.numpy_helper.from_array(numbers(1, 2, 3), "image"), tmp_path / "test_data_set_0/input_0.pb")
    save(tmp_path / "a.npz", image=numbers(3, 2, 3))
    samples = open_samples(tmp_path, [IMAGE])
    assert samples.count == 1
    assert samples.notes == (f"{tmp_path}: only the test data sets are read there, not 1 .npz file",)


def test_names_of_labels_take_one_sample_of_a_function():
    given = []

    def give():
        for n in range(9):
            given.append(n)
            yield {"image": numbers(1, 2, 3), "_label": n}

    assert wrap_samples(give, [IMAGE]).label_names() == (("_label",), "")
    assert given == [0]


def test_labels_are_those_of_the_first_samples(tmp_path: Path) -> None:
    samples = open_samples([save(tmp_path / "d.npz", image=numbers(9, 2, 3), _label=np.arange(9))], [IMAGE])
    assert samples.limit(3).labels()["_label"][0].tolist() == [0, 1, 2]
    for others in (samples.spread(3), samples.between(3, 6)):
        with pytest.raises(DataError, match="labels are read for the first samples, and these are others"):
            others.labels()


def test_what_macos_adds_to_an_archive_is_no_array(tmp_path: Path) -> None:
    path = save(tmp_path / "d.npz", image=numbers(3, 2, 3))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("__MACOSX/._image.npy", b"\0\5\x16\7")
        archive.writestr(".DS_Store", b"x")
    found = open_samples([path], [IMAGE])
    assert found.count == 3
    assert found.labels() == {}


@pytest.mark.parametrize("level", ["calib", "calib/deep"])
def test_a_folder_above_that_of_the_arrays_is_told_which_has_them(tmp_path: Path, level: str) -> None:
    (tmp_path / level).mkdir(parents=True)
    save(tmp_path / level / "d.npz", image=numbers(3, 2, 3))
    with pytest.raises(DataError) as caught:
        open_samples([tmp_path], [IMAGE])
    assert caught.value.hint == f"Give {tmp_path / level}, which has some."


def test_a_folder_for_each_input_is_no_folder_of_samples(tmp_path: Path) -> None:
    (tmp_path / "image").mkdir()
    np.save(tmp_path / "image" / "0.npy", numbers(2, 3))
    with pytest.raises(DataError, match="it holds 1 folder") as caught:
        open_samples([tmp_path], [IMAGE])
    assert caught.value.hint.startswith("Save samples")


def test_a_folder_of_texts_is_to_become_one_file(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("A sentence.")
    with pytest.raises(DataError, match=r"it holds 2 \.txt files") as caught:
        open_samples([tmp_path], [InputSpec("input_ids", TensorProto.INT64, ("batch", "seq")), MASK])
    assert f"awk 1 {tmp_path}/*.txt > texts.txt" in caught.value.hint
