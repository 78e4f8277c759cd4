"""Recipes: which scheme each node gets, as frozen types read from TOML. The last rule that matches a node wins."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from functools import cache, cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from onnxq.errors import RecipeError
from onnxq.ir.graph import MICROSOFT
from onnxq.ops.forms.scheme import Scheme
from onnxq.planning.qdq_placement import resolve_target_defaults
from onnxq.targets.target import load_target
from onnxq.text import as_list, did_you_mean

FAST = {"rounding": "nearest", "smoothing": False, "bias_correction": False}
ONLY_MICROSOFT = ("LSTM",)  # operators whose one form that computes in 8 bit is of that domain
MOST_HEADROOM = 4
NUMBERS: dict[str, tuple[Callable[[float], bool], str, str]] = {
    "headroom": (lambda value: 1 <= value <= MOST_HEADROOM, f"a factor from 1 to {MOST_HEADROOM}", "1.1"),
    "percentile": (lambda value: 50 < value <= 100, "a percentage above 50 and at most 100", "99.99"),
}
BLOCK_BITS, BLOCK_SIZES = (2, 4, 8), (16, 32, 64, 128, 256)
MEAN_BITS = 3  # of codes of 2, 4 and 8 bits: onnxruntime has no kernel for it
MIXED = "auto"  # in place of a number of bits: a search chooses those of each weight
CACHE_TYPES = ("int8", "float")
ELSEWHERE = {  # what a recipe is asked for by, elsewhere
    **dict.fromkeys(("int8", "uint8", "qint8", "w8a8", "default"), "The default, auto, computes in int8."),
    **dict.fromkeys(
        ("fp16", "float16", "half", "bf16"), "onnxq writes 8 bits or fewer; other tools convert to float16."
    ),
}
LISTS = ("exclude", "only", "allow")  # keys that hold lists of strings


@dataclass(frozen=True)
class Rule:
    """Settings for the nodes that both globs match.

    Attributes:
        op: Glob over operator types, such as `Conv` or `*Pool`.
        name: Glob over node names, such as `/encoder/*`.
        settings: Fields of `Scheme` that the rule sets.

    """

    op: str = "*"
    name: str = "*"
    settings: tuple[tuple[str, Any], ...] = ()

    def matches(self, op_type: str, node_name: str) -> bool:
        """Whether the rule is about this node; globs see case."""
        return fnmatchcase(op_type, self.op) and fnmatchcase(node_name, self.name)


def _not_a_glob(text: str) -> str:
    """Say why a glob is none, where it looks like a regular expression or like several; empty otherwise."""
    if "," in text:
        return ": for several, the option is repeated"
    return ": * stands for any signs, it is no regular expression" if re.search(r"\.[*+]|[$^|()\\]", text) else ""


@dataclass(frozen=True)
class Recipe:
    """A named set of rules.

    Attributes:
        name: What the recipe is called.
        description: One sentence for the listing.
        scheme: What nodes get that no rule matches.
        rules: In order; the last one that matches a node wins, setting by setting.
        exclude: Globs of node names or operator types that stay float whatever the rules say.
        only: Globs of node names or operator types; where there are any, all other nodes stay float.
        allow: Domains besides `ai.onnx` whose operators may be chosen where no setting asks for them.
        simplify: Whether the float model is simplified before it is quantized, if the target gains by that.

    """

    name: str
    description: str = ""
    scheme: Scheme = field(default_factory=Scheme)
    rules: tuple[Rule, ...] = ()
    exclude: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    simplify: bool = True

    def scheme_for(self, op_type: str, node_name: str) -> tuple[Scheme, str]:
        """Return the scheme of a node, and for one that is to stay float the words that say who wants that."""
        if (op_type, node_name) not in self._schemes:
            self._schemes[op_type, node_name] = self._scheme_for(op_type, node_name)
        return self._schemes[op_type, node_name]

    @cached_property
    def _schemes(self) -> dict[tuple[str, str], tuple[Scheme, str]]:
        """Cached results of `scheme_for`: every plan asks about each node several times."""
        return {}

    def _scheme_for(self, op_type: str, node_name: str) -> tuple[Scheme, str]:
        scheme, why = self.scheme, f"recipe {self.name}"
        for rule in self.rules:
            if rule.matches(op_type, node_name):
                scheme, why = replace(scheme, **dict(rule.settings)), f"rule op = '{rule.op}', name = '{rule.name}'"
        scheme = resolve_target_defaults(scheme, op_type, load_target(scheme.target))
        target = load_target(scheme.target)
        wanted = MICROSOFT in self.allow or (
            scheme.name == "auto" and target.timed and scheme.form in (target.stored, target.products)
        )
        if op_type in ONLY_MICROSOFT and wanted and MICROSOFT in target.domains:
            scheme = replace(scheme, domain=MICROSOFT)
        if self.only and not any(fnmatchcase(label, glob) for glob in self.only for label in (op_type, node_name)):
            scheme, why = replace(scheme, name="float"), "--only"
        glob = self.excluded_by(op_type, node_name)
        return (scheme, why) if glob is None else (replace(scheme, name="float"), f"--exclude {glob}")

    def excluded_by(self, op_type: str, node_name: str) -> str | None:
        """Return the last glob of `exclude` that matches a node, or None."""
        found = [glob for glob in self.exclude if fnmatchcase(node_name, glob) or fnmatchcase(op_type, glob)]
        return found[-1] if found else None

    def idle_globs(self, labels: Collection[str], before: Collection[str] = ()) -> list[str]:
        """Say, a sentence each, which globs of `exclude` and `only` match no node.

        Args:
            labels: Names and operators of the nodes that are decided about.
            before: Those of the model as it came: some nodes are folded or written as others before that.

        """
        globs = [(key, glob) for key in ("exclude", "only") for glob in getattr(self, key)]
        idle = [(key, glob) for key, glob in globs if not any(fnmatchcase(label, glob) for label in labels)]
        gone = {glob for _, glob in idle if any(fnmatchcase(label, glob) for label in before)}
        said = [f"no node {'is left that ' if glob in gone else ''}matches --{key} {glob}" for key, glob in idle]
        same = {label.lower(): label for label in sorted(labels, reverse=True)}  # names are told apart by their case
        return [
            f"{words}, and '{same[glob.lower()]}' is there" if glob.lower() in same else f"{words}{_not_a_glob(glob)}"
            for words, (_, glob) in zip(said, idle, strict=True)
        ]

    def selecting(self, exclude: str | Iterable[str] = (), only: str | Iterable[str] = ()) -> Recipe:
        """Add the globs of `--exclude` and `--only`, which match node names or operator types."""
        exclude, only = as_list(exclude), as_list(only)
        return replace(self, exclude=(*self.exclude, *exclude), only=(*self.only, *only))

    def at_opset(self, opset: int) -> Recipe:
        """Take QuantizeLinear and DequantizeLinear of `com.microsoft` where that is allowed and spares a conversion."""
        scheme = resolve_target_defaults(self.scheme, "", load_target(self.scheme.target))
        possible = MICROSOFT in self.allow and MICROSOFT in load_target(scheme.target).domains
        if not possible or scheme.pair_opset(activation=True, weight=True) <= opset:
            return self
        return self.setting(domain=MICROSOFT)

    def with_ranges(self, method: str, headroom: float = 1.0) -> Recipe:
        """Resolve `ranges = "auto"` in the scheme and in the rules, and set their headroom."""
        opened = self.scheme.ranges == "auto"
        rules = []
        for rule in self.rules:
            own = dict(rule.settings)
            room = own.get("headroom", self.scheme.headroom)
            follows = own.get("ranges", self.scheme.ranges) == "auto"
            if follows and own.keys() & {"ranges", "headroom"}:
                own |= {"headroom": min(room * headroom, MOST_HEADROOM)} if headroom != 1 else {}
                own |= {"ranges": method} if "ranges" in own else {}
            elif opened and "ranges" in own and headroom != 1:
                own["headroom"] = room  # not what the scheme is going to say
            rules.append(replace(rule, settings=tuple(own.items())))
        chosen = replace(self, rules=tuple(rules))
        most = min(self.scheme.headroom * headroom, MOST_HEADROOM)
        return chosen.setting(ranges=method, headroom=most) if opened else chosen

    def for_target(self, name: str) -> Recipe:
        """Choose the runtime that the model is for; raises RecipeError if there is none of that name."""
        return self.setting(target=load_target(name).name)

    @property
    def simplifies(self) -> bool:
        """Whether the recipe allows to simplify the model, and its target gains by that."""
        return self.simplify and load_target(self.scheme.target).simplify

    def setting(self, **settings: Any) -> Recipe:
        """Change fields of the scheme; rules that set them as well still win."""
        return replace(self, scheme=replace(self.scheme, **settings))

    def fast(self) -> Recipe:
        """Leave out what takes trials or chooses codes of weights, whatever the rules say."""
        rules = (replace(r, settings=tuple(item for item in r.settings if item[0] not in FAST)) for r in self.rules)
        return replace(self, rules=tuple(rules)).setting(**FAST)

    def to_toml(self) -> str:
        """Write the recipe as a file that `load_recipe` reads back to the same value."""
        default = Scheme()
        lines = [f"name = {_toml(self.name)}", f"description = {_toml(self.description)}"]
        lines += [f"{key} = {_toml(globs)}" for key in LISTS if (globs := getattr(self, key))]
        lines += [] if self.simplify else ["simplify = false"]
        lines += [f"scheme = {_toml(self.scheme.name)}"]
        lines += [
            f"{f.name} = {_toml(getattr(self.scheme, f.name))}"
            for f in fields(Scheme)
            if f.name != "name" and getattr(self.scheme, f.name) != getattr(default, f.name)
        ]
        for rule in self.rules:
            lines += ["", "[[rules]]"]
            lines += [f"{key} = {_toml(glob)}" for key, glob in (("op", rule.op), ("name", rule.name)) if glob != "*"]
            lines += [f"{'scheme' if key == 'name' else key} = {_toml(value)}" for key, value in rule.settings]
        return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    """Write a value as TOML; strings as JSON writes them, which is a TOML basic string once DEL is escaped too."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f") if isinstance(value, str) else repr(value)


def recipe_names() -> list[str]:
    """List the recipes that come with onnxq.

    Returns:
        Their names, sorted.

    Raises:
        FileNotFoundError: The installation lacks the folder of recipes.

    Examples:
        >>> import onnxq
        >>> "dynamic-int8" in onnxq.recipe_names()
        True

    """
    return sorted(path.name.removesuffix(".toml") for path in _folder().iterdir() if path.name.endswith(".toml"))


def in_blocks(bits: int | str, block_size: int | None = None, target: str | None = None) -> Recipe:
    """Return the recipe for weights in blocks, multiplied by MatMulNBits on activations of 8 bit.

    The head has 8 bits: nothing behind it evens its rounding out. A target without operators of `com.microsoft` gets
    DequantizeLinear.

    Args:
        bits: One of `BLOCK_BITS`, 3 for a mixture of them with that mean, or "auto" for those of each weight that
            serve a limit best: of size, or of loss.
        block_size: One of `BLOCK_SIZES`; that of the recipe `weight-int4` by default.
        target: Name of a target; the usual one by default.

    Returns:
        A recipe for `quantize`.

    Raises:
        RecipeError: There is no such number of bits, block size or target.

    Examples:
        >>> import onnxq
        >>> onnxq.in_blocks(4, 64).name
        'bits-4-block-64'

    """
    if not isinstance(bits, int | str) or bits not in (*BLOCK_BITS, MEAN_BITS, MIXED):
        known = ", ".join(map(str, sorted((*BLOCK_BITS, MEAN_BITS))))
        hint = f"Choose one of {known}, or for sizes between, {MIXED} with --max-size."
        raise RecipeError(f"--bits cannot be {bits!r}: onnxruntime multiplies by no such weights", hint)
    if block_size is not None and block_size not in BLOCK_SIZES:
        raise RecipeError(f"--block cannot be {block_size}", f"Choose one of {', '.join(map(str, BLOCK_SIZES))}.")
    recipe = load_recipe("weight-int4")
    size = recipe.scheme.block_size if block_size is None else block_size
    recipe = recipe if target is None else recipe.for_target(target)
    mixed = bits in (MIXED, MEAN_BITS)
    settings: dict[str, Any] = {"name": "weight-int4" if mixed else f"weight-int{bits}", "block_size": size}
    settings |= {"head_bits": 8} if bits != 8 else {}
    settings |= {"mixed_bits": True} if mixed else {}
    settings |= {"mean_bits": MEAN_BITS} if bits == MEAN_BITS else {}
    if MICROSOFT in load_target(recipe.scheme.target).domains:
        settings |= {"form": "matmulnbits", "accuracy_level": 4}
    number = "2 to 8" if mixed else bits
    description = f"Weights of MatMul and Gemm in {number} bit, in blocks of {size}; other weights in 8 bit"
    return replace(recipe, name=f"bits-{bits}-block-{size}", description=description).setting(**settings)


def load_recipe(source: str | Path) -> Recipe:
    """Read a recipe by its name, or from a TOML file.

    Args:
        source: The name, or the path of the file.

    Returns:
        The recipe; its `to_toml` writes it as a file to start from.

    Raises:
        RecipeError: There is no such recipe or file, or it does not parse, or it has an unknown key or value.

    Examples:
        >>> import onnxq
        >>> onnxq.load_recipe("auto").scheme.target
        'cpu'

    """
    text = str(source)
    if text in recipe_names():
        return parse_recipe((_folder() / f"{text}.toml").read_text("utf-8"), text)
    path = Path(source)
    if path.suffix != ".toml":
        near = ELSEWHERE.get(text.lower()) or did_you_mean(text, recipe_names(), cutoff=0.5)
        hint = f"{near} Choose one of {', '.join(recipe_names())}, or give a .toml file.".lstrip()
        raise RecipeError(f"there is no recipe named '{text}'", hint)
    try:
        content = path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise RecipeError(f"recipe {path} is no text in UTF-8 (byte {error.start})", "Save it as UTF-8.") from error
    except OSError as error:
        raise RecipeError(f"recipe {path} cannot be read ({error.strerror})", "Check the path.") from error
    return parse_recipe(content, str(path), default_name=path.stem)


def block_recipe(recipe: str, bits: int | str | None, block: int | None, target: str | None) -> Recipe:
    """Return the recipe that the options `bits` and `block` stand for.

    Args:
        recipe: The option of that name, which has to be `auto`.
        bits: Of a weight; one of `BLOCK_BITS`, 3, or "auto".
        block: How many weights share a scale; one of `BLOCK_SIZES`, None for the default.
        target: Name of the runtime that the model is for.

    Raises:
        RecipeError: They contradict each other, or onnxruntime has no such weights.

    """
    if bits is None:
        raise RecipeError("--block says how many weights share a scale, with --bits", "Add --bits 4.")
    if recipe != "auto":
        hint = f"Leave --recipe {recipe} out, or set block_size in a recipe file."
        raise RecipeError("--bits chooses the recipe itself", hint)
    return in_blocks(bits, block, target)


def choose_recipe(
    source: str | Path | Recipe,
    *,
    target: str | None = None,
    reduce_range: bool = False,
    kv_cache: str | None = None,
    exclude: str | Iterable[str] = (),
    only: str | Iterable[str] = (),
) -> Recipe:
    """Return a recipe with what the options of the same names change of it.

    Args:
        source: Name of a recipe, path of a TOML file, or a `Recipe`.
        target: Name of the runtime that the model is for; None for that of the recipe.
        reduce_range: Whether weights get 7 bits where products of 8 bits could saturate.
        kv_cache: Type of caches of keys and values, `int8` or `float`; None for that of the recipe.
        exclude: A glob of nodes to leave float, or several.
        only: A glob of nodes to quantize, or several.

    Raises:
        RecipeError: There is no such recipe or target, or the recipe is wrong.

    """
    recipe = (source if isinstance(source, Recipe) else load_recipe(source)).selecting(exclude, only)
    recipe = recipe if target is None else recipe.for_target(target)
    if kv_cache not in (None, *CACHE_TYPES):
        raise RecipeError(f"--kv-cache cannot be {kv_cache}", f"Choose one of {', '.join(CACHE_TYPES)}.")
    recipe = recipe if kv_cache is None else recipe.setting(kv_cache=kv_cache)
    return recipe.setting(reduce_range=True) if reduce_range else recipe


def parse_recipe(content: str, label: str, default_name: str = "") -> Recipe:
    """Read a recipe from TOML text; `label` names it in messages."""
    try:
        table = tomllib.loads(content)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise RecipeError(
            f"recipe {label} is not valid TOML: {error}", "Print one to start from with `onnxq recipes auto`."
        ) from error
    name, description = table.pop("name", default_name or label), table.pop("description", "")
    rules = table.pop("rules", [])
    if not isinstance(rules, list) or not all(isinstance(rule, dict) for rule in rules):
        raise RecipeError(
            f"recipe {label}: 'rules' must be a list of tables", "Write each rule under a [[rules]] line."
        )
    if not isinstance(name, str) or not isinstance(description, str):
        raise RecipeError(f"recipe {label}: 'name' and 'description' must be strings", "Put them in quotes.")
    lists = {key: _globs(table.pop(key, []), key, label) for key in LISTS}
    for domain in lists["allow"]:
        if domain != MICROSOFT:
            raise RecipeError(f"recipe {label}: 'allow' cannot have \"{domain}\"", f"Choose {MICROSOFT}.")
    simplify = _checked("simplify", table.pop("simplify", True), bool, label)
    scheme = Scheme(**_settings(table, label, extra=("name", "description", "rules", "simplify", *LISTS)))
    made = tuple(_rule(dict(rule), label) for rule in rules)
    return Recipe(name, description, scheme, made, simplify=simplify, **lists)


def _globs(value: Any, key: str, label: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(glob, str) for glob in value):
        raise RecipeError(f"recipe {label}: '{key}' must be a list of strings", f'Write {key} = ["GLOB", …].')
    return tuple(value)


def _rule(table: dict[str, Any], label: str) -> Rule:
    globs = {key: table.pop(key, "*") for key in ("op", "name")}
    for key, glob in globs.items():
        if not isinstance(glob, str):
            raise RecipeError(f"recipe {label}: '{key}' of a rule must be a string", "Put the glob in quotes.")
    for key in ("target", "simplify"):
        if key in table:
            raise RecipeError(
                f"recipe {label}: a rule cannot set '{key}'", "A model has one: write it above the rules."
            )
    return Rule(**globs, settings=tuple(_settings(table, label, extra=("op", "name")).items()))


def _settings(table: Mapping[str, Any], label: str, extra: tuple[str, ...]) -> dict[str, Any]:
    types = _scheme_types()
    keys = {"scheme" if name == "name" else name: name for name in types}
    settings = {}
    for key, value in table.items():
        if key not in keys:
            hint = did_you_mean(key, [*keys, *extra], cutoff=0.6) or f"Known keys: {', '.join(sorted(keys))}."
            raise RecipeError(f"recipe {label} has an unknown key '{key}'", hint)
        settings[keys[key]] = _checked(key, value, types[keys[key]], label)
    return settings


@cache
def _scheme_types() -> dict[str, Any]:
    """Return the types of the settings, which are read from text: that takes longer than to read a recipe."""
    return get_type_hints(Scheme)


def _checked(key: str, value: Any, kind: Any, label: str) -> Any:
    if get_origin(kind) is Literal:
        choices = get_args(kind)
        if (type(value), value) not in [(type(choice), choice) for choice in choices]:  # 32.0 and true are no integers
            similar = did_you_mean(str(value), [c for c in choices if isinstance(c, str)])
            hint = similar or f"Choose one of {', '.join(map(str, choices))}."
            raise RecipeError(f"recipe {label}: '{key}' cannot be {_toml(value)}", hint)
        return value
    if key == "target":
        if not isinstance(value, str):
            raise RecipeError(f"recipe {label}: 'target' must be a string", "Put the name in quotes.")
        return load_target(value).name
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        sound, what, example = NUMBERS[key]
        if not sound(value):
            raise RecipeError(f"recipe {label}: '{key}' is {what}, not {value}", f"Use for example {example}.")
        return float(value)
    if kind is not bool or not isinstance(value, bool):
        raise RecipeError(
            f"recipe {label}: '{key}' must be {'true or false' if kind is bool else 'a number'}", "See `onnxq recipes`."
        )
    return value


def _folder() -> Any:
    return files("onnxq.planning") / "recipes"
