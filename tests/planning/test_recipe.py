"""Recipes: what a file may say, what the messages say where it may not, and which rule a node gets."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxq.errors import RecipeError
from onnxq.ops.forms.scheme import Scheme
from onnxq.planning.recipe import Recipe, Rule, load_recipe, parse_recipe, recipe_names

NAMES = ["auto", "dynamic-int8", "static-int8", "weight-int8"]


def refusal(text: str) -> str:
    with pytest.raises(RecipeError) as error:
        parse_recipe(text, "r.toml")
    return f"{error.value.message} | {error.value.hint}"


# -- files ------------------------------------------------------------------------------------------------------------


def test_the_recipes_that_come_with_onnxq():
    assert [name for name in recipe_names() if name in NAMES] == NAMES
    for name in recipe_names():
        recipe = load_recipe(name)
        assert recipe.name == name
        assert recipe.description


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_survives_the_way_to_toml_and_back(name, tmp_path):
    recipe = load_recipe(name)
    path = tmp_path / "mine.toml"
    path.write_text(recipe.to_toml(), "utf-8")
    assert load_recipe(path) == recipe
    assert load_recipe(str(path)) == recipe


# All but surrogates. Tables of Unicode, which hypothesis makes for `st.characters`, take it three seconds.
CHARACTERS = st.one_of(st.integers(0, 0x7F), st.integers(0x80, 0xD7FF), st.integers(0xE000, 0x10FFFF)).map(chr)
TEXT = st.text(CHARACTERS, max_size=12)
SETTINGS = {
    "name": st.sampled_from(
        ["float", "auto", "dynamic-int8", "static-int8", "weight-int12", "weight-int8", "weight-int4", "weight-int2"]
    ),
    "granularity": st.sampled_from(["channel", "tensor"]),
    "form": st.sampled_from(["cast-mul", "qdq", "matmulnbits"]),
    "target": st.sampled_from(["cpu", "generic", "openvino", "qnn", "tensorrt"]),
    "bias": st.sampled_from(["int32", "float"]),
    "activations": st.sampled_from(["uint8", "int8", "uint16", "int16"]),
    "domain": st.sampled_from(["ai.onnx", "com.microsoft"]),
    "block_size": st.sampled_from([0, 16, 32, 64, 128, 256]),
    "zero_points": st.booleans(),
    "head_bits": st.sampled_from([0, 2, 4, 8]),
    "activation_granularity": st.sampled_from(["auto", "tensor", "row"]),
    "accuracy_level": st.sampled_from([0, 1, 2, 3, 4]),
    "integer_conv": st.booleans(),
    "ranges": st.sampled_from(["minmax", "percentile", "mse"]),
    "headroom": st.floats(1, 4),
    "percentile": st.floats(50, 100, exclude_min=True),
    "smoothing": st.booleans(),
    "prefix_correction": st.booleans(),
    "bias_correction": st.booleans(),
    "return_to_float": st.booleans(),
    "mixed_bits": st.booleans(),
    "mean_bits": st.sampled_from([0, 3]),
    "kv_cache": st.sampled_from(["float", "int8"]),
    "reduce_range": st.booleans(),
    "rounding": st.sampled_from(["nearest", "output-error"]),
}
SCHEMES = st.builds(Scheme, **SETTINGS)
OF_RULES = {key: values for key, values in SETTINGS.items() if key != "target"}
RULES = st.builds(Rule, TEXT, TEXT, st.fixed_dictionaries({}, optional=OF_RULES).map(lambda d: tuple(d.items())))
RECIPES = st.builds(
    Recipe,
    TEXT,
    TEXT,
    SCHEMES,
    st.lists(RULES, max_size=3).map(tuple),
    st.lists(TEXT, max_size=2).map(tuple),
    st.lists(TEXT, max_size=2).map(tuple),
    st.sampled_from([(), ("com.microsoft",)]),
)


@given(RECIPES)
def test_every_recipe_survives_the_way_to_toml_and_back(recipe):
    """Quotes, backslashes, line ends and control characters in names and globs included."""
    assert parse_recipe(recipe.to_toml(), "r.toml") == recipe


def test_every_setting_of_a_scheme_is_covered_by_the_round_trip():
    assert {field.name for field in fields(Scheme)} == SETTINGS.keys()


def test_a_recipe_without_a_name_is_called_like_its_file(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('scheme = "float"\n', "utf-8")
    assert load_recipe(path) == Recipe("mine", "", Scheme(name="float"))


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(RecipeError, match="there is no recipe named 'dynamic'") as error:
        load_recipe("dynamic")
    assert all(name in error.value.hint for name in NAMES)
    with pytest.raises(RecipeError, match="there is no recipe named 'AUTO'"):
        load_recipe("AUTO")


def test_a_missing_file(tmp_path):
    with pytest.raises(RecipeError, match=r"gone.toml cannot be read \(No such file or directory\)"):
        load_recipe(tmp_path / "gone.toml")
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(RecipeError, match=r"folder.toml cannot be read \(Is a directory\)"):
        load_recipe(tmp_path / "folder.toml")


def test_a_file_that_is_no_text(tmp_path):
    path = Path(tmp_path / "r.toml")
    path.write_bytes(b'name = "\xff"')
    with pytest.raises(RecipeError, match=r"r.toml is no text in UTF-8 \(byte 8\)"):
        load_recipe(path)


# -- keys and values --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[defaults]", "unknown key 'defaults' | Known keys: "),
        ("granularty = 'tensor'", "unknown key 'granularty' | Did you mean 'granularity'?"),
        ("Scheme = 'auto'", "unknown key 'Scheme' | Did you mean 'scheme'?"),
        ("rule = []", "unknown key 'rule' | Did you mean 'rules'?"),
        ("excludes = ['x']", "unknown key 'excludes' | Did you mean 'exclude'?"),
        ("zzz = 1", "unknown key 'zzz' | Known keys: accuracy_level, activation_granularity, "),
        ("[[rules]]\nnmae = 'x'", "unknown key 'nmae' | Did you mean 'name'?"),
        ("[[rules]]\nexclude = ['x']", "unknown key 'exclude' | Known keys: "),
        ("scheme = 'static-int4'", "'scheme' cannot be \"static-int4\" | Did you mean 'static-int8'?"),
        (
            "scheme = 'xyz'",
            "'scheme' cannot be \"xyz\" | Choose one of float, auto, dynamic-int8, static-int8, weight-",
        ),
        ("scheme = 8", "'scheme' cannot be 8 | Choose one of"),
        ("scheme = true", "'scheme' cannot be true | Choose one of"),
        ("ranges = 'min-max'", "'ranges' cannot be \"min-max\" | Did you mean 'minmax'?"),
        ("[[rules]]\nform = 'QDQ'", "'form' cannot be \"QDQ\" | Choose one of cast-mul, qdq, matmulnbits, integer."),
        ("block_size = 48", "'block_size' cannot be 48 | Choose one of 0, 16, 32, 64, 128, 256."),
        ("block_size = false", "'block_size' cannot be false | Choose one of 0, 16"),
        ("block_size = 32.0", "'block_size' cannot be 32.0 | Choose one of 0, 16"),
        ("accuracy_level = 'high'", "'accuracy_level' cannot be \"high\" | Choose one of 0, 1, 2, 3, 4."),
        ("granularity = ['tensor']", "'granularity' cannot be"),
        ("integer_conv = 1", "'integer_conv' must be true or false | "),
        ("integer_conv = 'yes'", "'integer_conv' must be true or false | "),
        ("percentile = 'high'", "'percentile' must be a number | "),
        ("percentile = true", "'percentile' must be a number | "),
        ("activation_granularity = 'rows'", "'activation_granularity' cannot be \"rows\" | Did you mean 'row'?"),
        ("headroom = 'wide'", "'headroom' must be a number | "),
        ("headroom = 0.9", "'headroom' is a factor from 1 to 4, not 0.9 | Use for example 1.1."),
        ("headroom = nan", "'headroom' is a factor from 1 to 4, not nan | "),
        ("percentile = 50", "'percentile' is a percentage above 50 and at most 100, not 50 | "),
        ("percentile = 100.5", "'percentile' is a percentage above 50 and at most 100, not 100.5 | "),
        ("percentile = 0.99", "'percentile' is a percentage above 50 and at most 100, not 0.99 | "),
        ("percentile = -99.0", "above 50 and at most 100, not -99.0 | "),
        ("percentile = nan", "above 50 and at most 100, not nan | "),
        ("percentile = inf", "above 50 and at most 100, not inf | "),
        ("name = 3", "'name' and 'description' must be strings | "),
        ("description = ['x']", "'name' and 'description' must be strings | "),
        ("rules = 'x'", "'rules' must be a list of tables | "),
        ("rules = ['x']", "'rules' must be a list of tables | "),
        ("[rules]\nop = 'x'", "'rules' must be a list of tables | "),
        ("[[rules]]\nop = 3", "'op' of a rule must be a string | "),
        ("exclude = 'x'", "'exclude' must be a list of strings | "),
        ("allow = ['com.nvidia']", "'allow' cannot have \"com.nvidia\" | Choose com.microsoft."),
        ("allow = 'com.microsoft'", "'allow' must be a list of strings | "),
        ("only = [1]", "'only' must be a list of strings | "),
        ("scheme = ", "is not valid TOML: "),
        ("a = " + 5000 * "[", "is not valid TOML: maximum recursion depth exceeded"),
        ("scheme = 'auto'\nscheme = 'auto'", "is not valid TOML: "),
    ],
)
def test_what_a_recipe_may_not_say(text, expected):
    message = refusal(text)
    assert message.startswith("recipe r.toml")
    assert expected in message


@pytest.mark.parametrize("value", [50.001, 100, 99])
def test_percentages_at_the_edges(value):
    scheme = parse_recipe(f"percentile = {value}", "r.toml").scheme
    assert scheme.percentile == value
    assert type(scheme.percentile) is float


@given(st.text(CHARACTERS, max_size=40))
def test_no_text_makes_anything_but_a_recipe_or_a_refusal(text):
    with suppress(RecipeError):
        assert isinstance(parse_recipe(text, "r.toml"), Recipe)


# -- which scheme a node gets -----------------------------------------------------------------------------------------

LAYERED = parse_recipe(
    """
    name = "layered"
    scheme = "static-int8"
    ranges = "mse"

    [[rules]]
    op = "Conv"
    granularity = "tensor"

    [[rules]]
    name = "/head/*"
    scheme = "float"

    [[rules]]
    op = "*Pool"
    scheme = "float"

    [[rules]]
    op = "Conv"
    name = "*/keep"
    scheme = "weight-int8"
    """,
    "layered.toml",
)


@pytest.mark.parametrize(
    ("op", "name", "expected"),
    [
        ("Gemm", "g", {}),
        ("Conv", "c", {"granularity": "tensor"}),
        ("Conv", "/head/c", {"granularity": "tensor", "name": "float"}),
        ("MaxPool", "p", {"name": "float"}),
        ("maxpool", "p", {}),
        ("Pool", "p", {"name": "float"}),
        ("Conv", "/head/keep", {"granularity": "tensor", "name": "weight-int8"}),
        ("Conv", "/HEAD/c", {"granularity": "tensor"}),
        ("Conv", "", {"granularity": "tensor"}),
        ("Gemm", "x/head/", {}),
    ],
)
def test_the_last_rule_that_matches_wins_setting_by_setting(op, name, expected):
    base = Scheme(name="static-int8", ranges="mse")
    assert LAYERED.scheme_for(op, name)[0] == replace(base, **expected)


def test_the_words_say_who_wants_a_node_float():
    assert LAYERED.scheme_for("MaxPool", "p")[1] == "rule op = '*Pool', name = '*'"
    assert load_recipe("auto").scheme_for("Conv", "c")[1] == "recipe auto"
    assert LAYERED.selecting(exclude=["c*"]).scheme_for("Conv", "c1")[1] == "--exclude c*"
    assert LAYERED.selecting(only=["c*"]).scheme_for("Conv", "d1")[1] == "--only"


@pytest.mark.parametrize(
    ("exclude", "only", "quantized"),
    [
        ([], [], {"c1", "c2", "g1"}),
        (["c1"], [], {"c2", "g1"}),
        (["C1"], [], {"c1", "c2", "g1"}),
        (["Conv"], [], {"g1"}),
        (["conv"], [], {"c1", "c2", "g1"}),
        (["*1"], [], {"c2"}),
        (["c[12]"], [], {"g1"}),
        (["?1", "c2"], [], set()),
        ([], ["Gemm"], {"g1"}),
        ([], ["c1", "g?"], {"c1", "g1"}),
        ([], ["nothing"], set()),
        (["c2"], ["Conv"], {"c1"}),
        (["*"], ["Conv"], set()),
    ],
)
def test_exclude_and_only_match_names_or_operators(exclude, only, quantized):
    nodes = [("Conv", "c1"), ("Conv", "c2"), ("Gemm", "g1")]
    recipe = load_recipe("static-int8").selecting(exclude=exclude, only=only)
    assert {name for op, name in nodes if recipe.scheme_for(op, name)[0].name != "float"} == quantized


def test_globs_that_match_no_node_are_named():
    recipe = load_recipe("auto").selecting(["/haed/*", "Softmax"], ["Conv", "/head/mm?"])
    assert recipe.idle_globs({"Conv", "c", "MatMul", "/head/mm1"}) == [
        "no node matches --exclude /haed/*",
        "no node matches --exclude Softmax",
    ]
    assert recipe.idle_globs({"conv", "softmax", "/head/mm1"}) == [
        "no node matches --exclude /haed/*",
        "no node matches --exclude Softmax, and 'softmax' is there",
        "no node matches --only Conv, and 'conv' is there",
    ]
    assert recipe.idle_globs({"Conv", "MatMul", "/head/mm1"}, {"Softmax"})[1:] == [
        "no node is left that matches --exclude Softmax"
    ]


def test_selecting_adds_to_what_the_recipe_says():
    recipe = parse_recipe('exclude = ["a"]\nonly = ["b"]', "r.toml").selecting(["c"], ["d"])
    assert (recipe.exclude, recipe.only) == (("a", "c"), ("b", "d"))
    assert parse_recipe(recipe.to_toml(), "again") == recipe


def test_no_rule_brings_back_what_is_excluded():
    recipe = parse_recipe('exclude = ["c"]\n[[rules]]\nname = "c"\nscheme = "static-int8"', "r.toml")
    assert recipe.scheme_for("Conv", "c")[0].name == "float"
