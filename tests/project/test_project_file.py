import re
from pathlib import Path

import pytest

from onnxq.data.beside import LIST_SUFFIXES, PICTURE_SUFFIXES, SENTENCE_SUFFIXES, SOUND_SUFFIXES
from onnxq.errors import ExitCode, ProjectError
from onnxq.pipeline.options import QuantizeOptions
from onnxq.project.entry import EXTERNAL_SUFFIXES, Entry, Thresholds
from onnxq.project.file import find_project, load_project
from onnxq.project.settings import refuse_settings
from onnxq.stages.files import default_output

WHOLE = """
[defaults]
recipe = "static-int8"
data = ["calib.npz"]
thresholds = { min-sqnr = 30, max-abs = 1.5 }

[[models]]
float = "a.onnx"

[[models]]
float = "b.onnx"
quantized = "out/b.onnx"
recipe = "recipes/mine.toml"
target = "cpu"
data = ["folder", "samples:give"]
samples = 64
exclude = ["/head/*"]
only = ["Conv"]
custom-ops = ["libs/ops.so"]
external-data = true
reduce-range = true
kv-cache = "int8"
max-size = "1.5 MB"
fast = true
verify-data = ["test.npz"]
metric = "scores:top1"
thresholds = { min-sqnr = 40.5, min-agreement = 99, min-cosine = 0.5, max-drop = 2 }
"""


def written(folder: Path, text: str, name: str = "onnxq.toml") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return folder / name


def test_every_key(tmp_path: Path) -> None:
    first, second = load_project(written(tmp_path, WHOLE)).entries
    assert first == Entry(
        tmp_path,
        tmp_path / "a.onnx",
        tmp_path / "a.int8.onnx",
        QuantizeOptions(recipe="static-int8", data=("calib.npz",), min_sqnr=30.0),
        thresholds=Thresholds(30.0, 1.5),
    )
    assert second == Entry(
        tmp_path,
        tmp_path / "b.onnx",
        tmp_path / "out/b.onnx",
        QuantizeOptions(
            recipe="recipes/mine.toml",
            target="cpu",
            data=("folder", "samples:give"),
            samples=64,
            exclude=("/head/*",),
            only=("Conv",),
            custom_ops=(Path("libs/ops.so"),),
            external_data=True,
            reduce_range=True,
            kv_cache="int8",
            max_size=1_500_000,
            min_sqnr=40.5,
            max_drop=2.0,
            metric="scores:top1",
            fast=True,
        ),
        thresholds=Thresholds(40.5, 1.5, 99.0, 0.5, 2.0),
        verify_data=("test.npz",),
    )
    assert first.recipe_source() == "static-int8"
    assert second.recipe_source() == str(tmp_path / "recipes/mine.toml")
    assert second.data_sources(second.options.data) == [str(tmp_path / "folder"), "samples:give"]


@pytest.mark.parametrize("name", ["net.onnx", "net", "net.v2.onnx"])
def test_the_default_output_is_that_of_the_command_line(tmp_path: Path, name: str) -> None:
    (entry,) = load_project(written(tmp_path, f"[[models]]\nfloat = '{name}'")).entries
    assert entry.quantized == default_output(tmp_path / name)


WRONG = {
    "no TOML": ("models = [", "is not valid TOML"),
    "merge conflict": (
        "<<<<<<< HEAD\na = 1\n=======\na = 2\n>>>>>>> x\n",
        "is not valid TOML|marks of a merge conflict",
    ),
    "no models": ("", "lists no models"),
    "models no list": ("models = 3", "'models' must be a list of tables"),
    "models of numbers": ("models = [3]", "'models' must be a list of tables"),
    "defaults no table": ("defaults = 3\n[[models]]\nfloat = 'a.onnx'", "'defaults' must be a table"),
    "pattern": ("[[models]]\nfloat = 'm/*.onnx'", "'float' is the pattern m/*.onnx, and an entry is about one|init`"),
    "key twice": ("[[models]]\nfloat = 'a.onnx'\nfloat = 'b.onnx'", "is not valid TOML|A key stands there twice"),
    "pattern of results": ("[[models]]\nfloat = 'a.onnx'\nquantized = 'o?.onnx'", "a.onnx: 'quantized' is the pattern"),
    "unknown table": ("[[model]]\nfloat = 'a.onnx'", "has an unknown key 'model'|Did you mean 'models'?"),
    "unknown key": ("[[models]]\nfloat = 'a.onnx'\nexlude = []", "a.onnx has an unknown key 'exlude'|'exclude'?"),
    "no quotes": ("[[models]]\nfloat = a.onnx", "is not valid TOML|Write text between double quotes"),
    "an open quote": ('[[models]]\nfloat = "a.onnx\n', "is not valid TOML|Write text between double quotes"),
    "a key of another tool": (
        "[[models]]\nfloat = 'a.onnx'\noutput = 'b.onnx'",
        "a.onnx has an unknown key 'output'|Did you mean 'quantized'?",
    ),
    "unknown default": ("[defaults]\nfloat = 'a'\n[[models]]\nfloat = 'a.onnx'", "defaults has an unknown key 'float'"),
    "unknown threshold": (
        "[[models]]\nfloat = 'a.onnx'\nthresholds = { min_sqnr = 3 }",
        "a.onnx: 'thresholds' has an unknown key 'min_sqnr'|Did you mean 'min-sqnr'?",
    ),
    "size among thresholds": (
        "[[models]]\nfloat = 'a.onnx'\nthresholds = { max-size = '10kB' }",
        "unknown key 'max-size'|Write it outside of the thresholds: max-size = \"10kB\".",
    ),
    "another name in capitals": (
        "[[models]]\nfloat = 'a.onnx'\nCalibration = ['a.npz']",
        "a.onnx has an unknown key 'Calibration'|Did you mean 'data'?",
    ),
    "float misspelt": ("[[models]]\nflaot = 'a.onnx'", "a model has an unknown key 'flaot'|Did you mean 'float'?"),
    "float is a number": ("[[models]]\nfloat = 3", "'float' of a model must be a string"),
    "a backslash of Windows": ('[[models]]\nfloat = "a\\regress.onnx"', "'float' of a model holds a control character"),
    "data is no list": ('[[models]]\nfloat = "m.onnx"\ndata = "d.npz"', "'data' must be a list of strings"),
    "a threshold with an underscore": (
        '[[models]]\nfloat = "m.onnx"\nmin_sqnr = true',
        "has an unknown key 'min_sqnr'|thresholds = { min-sqnr = NUMBER }.",
    ),
    "too deep": ("a = " + 5000 * "[", "is not valid TOML: maximum recursion depth exceeded"),
    "a key of models at the top": (
        "ignore = ['stale']\n[[models]]\nfloat = 'a.onnx'",
        "has an unknown key 'ignore'|Write it under [[models]] for one model, or under [defaults] for all.",
    ),
    "a threshold elsewhere": ('[[models]]\nfloat = "m.onnx"\nmin-sqnr = 30', "has an unknown key 'min-sqnr'"),
    "no float": ("[[models]]\nrecipe = 'auto'", "a model has no 'float'"),
    "recipe no string": ("[[models]]\nfloat = 'a.onnx'\nrecipe = 3", "a.onnx: 'recipe' must be a string"),
    "data no list": ("[[models]]\nfloat = 'a.onnx'\ndata = 'x.npz'", "'data' must be a list of strings"),
    "samples zero": ("[[models]]\nfloat = 'a.onnx'\nsamples = 0", "'samples' must be a whole number above 0"),
    "samples true": ("[[models]]\nfloat = 'a.onnx'\nsamples = true", "'samples' must be a whole number above 0"),
    "flag": ("[[models]]\nfloat = 'a.onnx'\nexternal-data = 1", "'external-data' must be true or false"),
    "size": ("[[models]]\nfloat = 'a.onnx'\nmax-size = '10 megs'", "'max-size' must be a number of bytes"),
    "size below zero": ("[[models]]\nfloat = 'a.onnx'\nmax-size = -1", "'max-size' must be a number of bytes"),
    "thresholds": ("[[models]]\nfloat = 'a.onnx'\nthresholds = 3", "'thresholds' must be a table"),
    "threshold": (
        "[[models]]\nfloat = 'a.onnx'\nthresholds = { max-abs = 'low' }",
        "'thresholds', 'max-abs' must be a number",
    ),
    "threshold nan": (
        "[[models]]\nfloat = 'a.onnx'\nthresholds = { max-abs = nan }",
        "'max-abs' must be a finite number",
    ),
    "threshold larger than all floats": (
        f"[[models]]\nfloat = 'a.onnx'\nthresholds = {{ min-sqnr = 1{400 * '0'} }}",
        "'min-sqnr' must be a finite number",
    ),
    "percentage": (
        "[[models]]\nfloat = 'a.onnx'\nthresholds = { min-agreement = 101 }",
        "must be a percentage from 0 to 100",
    ),
    "share": (
        "[[models]]\nfloat = 'a.onnx'\nthresholds = { min-agreement = 0.99 }",
        "must be a percentage, not a share of 1",
    ),
    "error below 0": ("[[models]]\nfloat = 'a.onnx'\nthresholds = { max-abs = -1 }", "must be 0 or more"),
    "cosine": ("[[models]]\nfloat = 'a.onnx'\nthresholds = { min-cosine = 2 }", "must be from -1 to 1"),
    "samples of nothing": ("[[models]]\nfloat = 'a.onnx'\nsamples = 3", "a.onnx has 'samples', but no 'data'"),
    "drop of nothing": ("[[models]]\nfloat = 'a.onnx'\nthresholds = { max-drop = 2 }", "'max-drop', but no 'metric'"),
    "metric on nothing": ("[[models]]\nfloat = 'a.onnx'\nmetric = 'a:b'", "'metric', but no 'verify-data'"),
    "one model twice": (
        "[[models]]\nfloat = 'a.onnx'\n[[models]]\nfloat = 'a.onnx'",
        "a.onnx twice",
    ),
    "one output twice": (
        "[[models]]\nfloat = 'a.onnx'\n[[models]]\nfloat = 'b.onnx'\nquantized = './a.int8.onnx'",
        "a.onnx and {}/b.onnx both become",
    ),
    "output is a source": ("[[models]]\nfloat = 'a.onnx'\nquantized = 'a.onnx'", "is both float and quantized model"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said_with_a_hint(tmp_path: Path, name: str) -> None:
    text, expected = WRONG[name]
    path = written(tmp_path, text)
    with pytest.raises(ProjectError) as caught:
        load_project(path)
    message, _, hint = expected.partition("|")
    assert message.format(tmp_path) in caught.value.message
    assert caught.value.message.startswith(str(path))
    assert caught.value.hint
    assert hint in caught.value.hint
    assert caught.value.exit_code is ExitCode.ERROR


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [("7", 7), ("'7 B'", 7), ("'2kB'", 2000), ("'1.5 MB'", 1_500_000), ("'3 GB'", 3 * 10**9), ("'2 MiB'", 2 << 20)],
)
def test_sizes(tmp_path: Path, text: str, bytes_: int) -> None:
    (entry,) = load_project(written(tmp_path, f"[[models]]\nfloat = 'a.onnx'\nmax-size = {text}")).entries
    assert entry.options.max_size == bytes_


MODEL = "[[models]]\nfloat = 'm/a.onnx'\n"


def test_it_is_found_from_below_and_paths_start_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, MODEL)
    below = tmp_path / "x" / "y"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert find_project() == Path("../../onnxq.toml")
    assert load_project().entries[0].source == Path("../../m/a.onnx")
    monkeypatch.chdir(tmp_path)
    assert find_project() == Path("onnxq.toml")
    assert load_project().entries[0].source == Path("m/a.onnx")


def test_pyproject_counts_where_it_says_something_about_onnxq(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, "[[tool.onnxq.models]]\nfloat = 'outer.onnx'", "pyproject.toml")
    written(tmp_path / "in", "[project]\nname = 'x'", "pyproject.toml")
    monkeypatch.chdir(tmp_path / "in")
    assert find_project() == Path("../pyproject.toml")
    assert load_project().entries[0].source == Path("../outer.onnx")
    written(tmp_path / "in", MODEL)
    assert find_project() == Path("onnxq.toml")


def test_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_project() is None
    with pytest.raises(ProjectError, match=re.escape("there is no onnxq.toml")):
        load_project()
    with pytest.raises(ProjectError, match="No such file"):
        load_project(Path("other.toml"))


def test_a_folder_of_that_name_is_in_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("onnxq.toml").mkdir()
    with pytest.raises(ProjectError) as caught:
        load_project()
    assert caught.value.hint == "The folder onnxq.toml is in its place: give that another name."


@pytest.mark.parametrize("text", ["tool = 3", "[tool]\nonnxq = 3"])
def test_an_odd_pyproject(tmp_path: Path, text: str) -> None:
    with pytest.raises(ProjectError, match="must be a table"):
        load_project(written(tmp_path, text, "pyproject.toml"))


def test_which_files_belong_to_a_model(tmp_path: Path) -> None:
    project = load_project(written(tmp_path, WHOLE))
    first, second = project.entries
    written(tmp_path / "folder", "", "x.npz")
    (tmp_path / "recipes").mkdir(exist_ok=True)
    written(tmp_path, "", "samples.py")
    for name, entries in {
        "a.onnx": [first],
        "a.int8.onnx": [first],
        "a.int8.onnx.data": [first, second],
        "weights/onnx__MatMul_7": [first, second],
        "out/b.onnx_data": [second, first],
        "out/b.onnx_data_1": [second, first],
        "calib.npz": [first],
        "recipes/mine.toml": [second],
        "folder/x.npz": [second],
        "samples.py": [second],
        "folder": [second],
        "recipes": [second],
        "test.npz": [second],
        "onnxq.toml": [first, second],
        "other.onnx": [],
        "README.md": [],
    }.items():
        assert project.touched(tmp_path / name) == entries, name


def test_the_hooks_pass_on_whatever_may_belong_to_a_model() -> None:
    text = (Path(__file__).parents[2] / ".pre-commit-hooks.yaml").read_text()
    patterns = re.findall(r"^  files: (.+)$", text, re.MULTILINE)
    assert len(patterns) == 2
    names = ["a.onnx", "d/c.npz", "c.npy", "onnxq.toml", "mine.toml", "d/give.py", "set/input_0.pb"]
    names += [f"d/weights{suffix}" for suffix in (*EXTERNAL_SUFFIXES, ".onnx_data_1")]
    read = (*PICTURE_SUFFIXES, *SOUND_SUFFIXES, *SENTENCE_SUFFIXES, *LIST_SUFFIXES)
    names += [f"my data/a{suffix}" for suffix in read] + ["a.JPG", "tokenizer.json", "model.xml", "submodule"]
    for pattern in patterns:
        assert [name for name in names if not re.search(pattern, name)] == []
        assert not re.search(pattern, "d/README.md")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("recipe = 'int8'", "there is no recipe named 'int8'"),
        ("target = 'gpu'", "there is no target named 'gpu'"),
        ("bits = 5", "--bits cannot be 5"),
        ("bits = 4\nblock = 7", "--block cannot be 7"),
        ("kv-cache = 'fp8'", "--kv-cache cannot be fp8"),
        ("data = ['d.npz']\nmetric = 'accuracy'", "'accuracy' is no metric"),
    ],
)
def test_what_no_model_can_be_built_with_is_refused_before_the_first(
    tmp_path: Path, setting: str, message: str
) -> None:
    path = written(tmp_path, f"[[models]]\nfloat = 'a.onnx'\n[[models]]\nfloat = 'b.onnx'\n{setting}")
    with pytest.raises(ProjectError, match=f"b.onnx: {message}"):
        refuse_settings(load_project(path))


def test_another_encoding_is_named(tmp_path: Path) -> None:
    (tmp_path / "onnxq.toml").write_text(WHOLE, "utf-16")
    with pytest.raises(ProjectError, match="is no text in UTF-8: byte 0 does not fit") as caught:
        load_project(tmp_path / "onnxq.toml")
    assert caught.value.hint == "Save it as UTF-8."


def test_a_path_of_windows_is_told_to_use_slashes(tmp_path: Path) -> None:
    (tmp_path / "onnxq.toml").write_text('[[models]]\nfloat = "models\\enc.onnx"\n')
    with pytest.raises(ProjectError, match="is not valid TOML") as caught:
        load_project(tmp_path / "onnxq.toml")
    assert caught.value.hint == "Write / between the folders of a path, not \\."
