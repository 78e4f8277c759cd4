"""Explain wrong arguments: name the fault, suggest a correction, and point to the help.

Tests: `tests/cli/test_cli_errors.py`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from onnxq.text import join_words, parse_size, shell_path

# Names in other tools: for commands a sentence, for options the option here
COMMANDS = {
    "version": "Write `onnxq --version`.",
    "completion": "Write `onnxq --install-completion`.",
    "help": "Write `onnxq help COMMAND`.",
    **dict.fromkeys(("compare", "diff", "eval", "evaluate", "test", "validate", "benchmark", "run"), "verify"),
    **dict.fromkeys(("convert", "compress", "build", "optimize", "optimise", "quant"), "quantize"),
    **dict.fromkeys(("info", "show", "summary", "print", "view", "list", "ls", "stats"), "inspect"),
    **dict.fromkeys(("lint", "status"), "check"),
    **dict.fromkeys(("recipe", "presets", "configs"), "recipes"),
    **dict.fromkeys(("new", "create", "setup", "start"), "init"),
    **dict.fromkeys(("calibration", "collect"), "calibrate"),
    **dict.fromkeys(("targets", "metrics", "options"), "Write `onnxq quantize --help`, which lists them."),
}
# Kinds of result that others have as switches
VALUES = {
    **dict.fromkeys(("--int8", "--uint8", "--static", "--qdq"), "--recipe static-int8"),
    **dict.fromkeys(("--int4", "--uint4"), "--recipe weight-int4"),
    "--dynamic": "--recipe dynamic-int8",
    "--json": "--format json",
}
OPTIONS = {
    **dict.fromkeys(("--input", "--in", "--images", "--dataset", "--calib", "--calibration", "--inputs"), "--data"),
    **dict.fromkeys(("--save", "--dest", "--destination", "--to"), "--output"),
    **dict.fromkeys(("--overwrite", "--replace", "--yes", "-y"), "--force"),
    **dict.fromkeys(("--num-samples", "--limit", "--count", "-n", "--n"), "--samples"),
    **dict.fromkeys(("--ignore", "--skip", "--exclude-nodes", "--nodes-to-exclude"), "--exclude"),
    **dict.fromkeys(("--include", "--nodes-to-quantize"), "--only"),
    **dict.fromkeys(("--device", "--provider", "--backend", "--platform", "--hardware", "-t"), "--target"),
    **dict.fromkeys(("--num-bits", "--wbits", "--weight-bits"), "--bits"),
    **dict.fromkeys(("--precision", "--dtype", "--scheme", "--preset", "--mode", "--type"), "--recipe"),
    **{name: value.split()[0] for name, value in VALUES.items()},
    **dict.fromkeys(("--threshold", "--sqnr", "--snr", "--tolerance", "--min-snr"), "--min-sqnr"),
    **dict.fromkeys(("--reference", "--float", "--baseline", "--original", "--with"), "--against"),
    **dict.fromkeys(("--html", "--markdown", "--log"), "--report"),
    **dict.fromkeys(("--quick", "--no-search"), "--fast"),
    **dict.fromkeys(("--7bit", "--reduce"), "--reduce-range"),
    **dict.fromkeys(("--threads", "--num-threads", "--workers"), "--jobs"),
    **dict.fromkeys(("--debug", "--log-level", "--trace"), "--verbose"),
}
# Options of other tools, and how it is decided here
CHOSEN = {
    **dict.fromkeys(("--per-channel", "--axis", "--granularity"), "Weights have a scale for each channel."),
    **dict.fromkeys(("--opset", "--opset-version"), "The opset is raised where a quantized form needs it."),
    **dict.fromkeys(
        ("--calibration-method", "--calib-method", "--calibrate-method", "--calibration-algorithm", "--range"),
        "The range method is set in a recipe file.",
    ),
    **dict.fromkeys(
        ("--symmetric", "--activation-type", "--weight-type", "--weights-dtype", "--activations-dtype", "--quant-type"),
        "Types are set in a recipe file.",
    ),
    **dict.fromkeys(
        ("--model", "--onnx", "--input-model", "--model-path", "--model-input", "--source", "-m"),
        "Write the model without an option: `onnxq quantize MODEL`.",
    ),
    **dict.fromkeys(("--batch-size", "--batch", "-b"), "Batches are those of the data: one sample at a time will do."),
    **dict.fromkeys(
        ("--op-types", "--ops", "--op-types-to-quantize", "--operators"),
        "Write --only with types or names of nodes, as in --only Conv --only MatMul.",
    ),
    **dict.fromkeys(
        ("--input-shape", "--input-shapes", "--shape", "--shapes", "--dim", "--dims", "--overwrite-input-shape"),
        "Shapes are the model's own, and sizes that it leaves open are those of the first sample.",
    ),
    **dict.fromkeys(("--fp16", "--float16", "--half", "--bf16"), "onnxq writes 8 bits or fewer, and no float16."),
    **dict.fromkeys(("--seed", "--random-seed"), "Nothing is drawn by chance: the same input gives the same bytes."),
}
MISSING = {"missing argument 'NODE'": "`onnxq plan MODEL` lists the nodes."}
NUMBERS = {"integer": "no whole number", "number": "no number"}
BOUNDS = {"greater than or equal to": "at least", "less than or equal to": "at most"}
DASHES = "-\u2010\u2011\u2012\u2013\u2014\u2015\u2212"  # the plain one, and those that editors make of two
ALIKE = 0.78
MOST = 3
MOST_PERCENT = 100
MOST_NAMES = 4


def usage_error(error: Any, arguments: Sequence[str]) -> tuple[str, str]:
    """Return message and hint for what typer refused.

    Args:
        error: Its exception; the class has moved between versions, what it offers has not.
        arguments: Of the command line, without the program.

    """
    context = getattr(error, "ctx", None)
    command = _command(context, arguments)
    see = f"See `{_path(context, command, arguments)} --help`."
    kind = type(error).__name__
    if kind == "NoSuchOption":
        name = str(error.option_name)
        file = next((word for word in arguments if word.startswith("-") and Path(word).is_file()), None)
        if file is not None:  # a model whose name begins with a dash
            return f"no such option: {name}", f"For the file of that name, write ./{file}. {see}"
        behind = not hasattr(getattr(context, "command", None), "commands")  # else it stands before the command
        hint = _model_in_option(name, command, arguments) or _options(name, command, behind=behind)
        return f"no such option: {name}", f"{hint} {see}".lstrip()
    message = str(error.format_message()).strip().replace(": Value error, ", ": ")
    message = message[:1].lower() + message[1:].rstrip(".")
    if message in MISSING:
        return message, f"{MISSING[message]} {see}"
    if message.startswith("no such command"):
        name = next((word for word in arguments if not word.startswith("-")), "")
        return f"no such command '{name}'", f"{_commands(name, context)} {see}".lstrip()
    if message.startswith("got unexpected extra argument"):
        extra = list(getattr(context, "args", None) or _extra(message, arguments))
        odd = next((word for word in (*extra, *arguments) if _meant_long(word, command)), None)
        if odd is not None:
            return f"'{odd}' is no option", f"Write {_meant_long(odd, command)}. {see}"
        repeated = any(word == "--data" or word.startswith(("-d", "--data=")) for word in arguments)
        hint = (
            _one_word(extra[0], arguments)
            or _with_blanks(extra, context)
            or ("" if repeated else _pair(extra, context, command))
            or _many(extra, command)
        )
        return f"there is no place for {_short(extra)}", f"{hint} {see}".lstrip()
    if message.startswith("invalid value for"):
        denied = message.endswith(("is not readable", "is not writable"))
        plain = _plain_value(message, arguments)
        return plain, "Check its permissions." if denied else f"{_unit(plain)} {see}".lstrip()
    return message, see


def _command(context: Any, arguments: Sequence[str]) -> Any:
    """Return the command that the arguments are for; None where there is none."""
    found = getattr(context, "command", None)
    if found is not None and not hasattr(found, "commands"):
        return found
    if found is None:
        from onnxq.cli.app import command

        found = command()
    known = found.commands
    return next((known[word] for word in arguments if word in known), None)


def _path(context: Any, command: Any, arguments: Sequence[str]) -> str:
    path = getattr(context, "command_path", None) or "onnxq"
    return f"{path} {command.name}" if command is not None and path == "onnxq" else str(path)


def _names(command: Any) -> list[str]:
    parameters = [] if command is None else [p for p in command.params if p.param_type_name == "option"]
    return [name for parameter in parameters for name in parameter.opts if name.startswith("--")]


def _model_in_option(name: str, command: Any, arguments: Sequence[str]) -> str:
    """Say where a model stands that was given with an option; empty where the option is for anything else."""
    value = _value(name, arguments) or ""
    if command is None or not value.endswith(".onnx") or not re.search("^--?i$|input|model|source", name):
        return ""
    return f"Write the model without an option: `onnxq {command.name} {shell_path(value)}`."


def _options(name: str, command: Any, *, behind: bool) -> str:
    """Say which options were meant perhaps: what others call so, a part of the name, or one spelt alike."""
    known = _names(command)
    if not behind and command is not None and any(name in parameter.opts for parameter in command.params):
        return f"Write it behind the command: `onnxq {command.name} … {name}`."
    if not behind and name in ("-V", "-v", "-version"):
        return "Write `onnxq --version`."
    if not known:
        return "Options stand behind a command, as in `onnxq quantize MODEL --data DATA`."
    plain = name.lower().replace("_", "-") if name.startswith("--") else name
    if plain in CHOSEN and "--recipe" in known:
        return CHOSEN[plain]
    meant = OPTIONS.get(plain)
    if meant in known:
        return f"Did you mean {VALUES.get(plain, meant)}?"
    words = set(re.split(r"[-_]+", name.strip("-").lower()))
    found = difflib.get_close_matches(name, known, n=1, cutoff=ALIKE)
    found += [other for other in known if other.strip("-") in words or other.strip("-").startswith(name.strip("-"))]
    found += [str(OPTIONS[f"--{word}"]) for word in sorted(words) if OPTIONS.get(f"--{word}") in known]
    unique = list(dict.fromkeys(found))[:MOST] if len(name) > len("--x") else []
    return f"Did you mean {' or '.join(unique)}?" if unique else ""


def _meant_long(word: str, command: Any) -> str:
    """Return the long option behind one dash, or behind a dash of a word processor; empty for any other word."""
    name = f"--{word.lstrip(DASHES).partition('=')[0]}"
    marked = word[:1] in DASHES[1:] or (word[:1] == "-" and word[1:2] not in ("-", "") and len(word) > len("-x"))
    return name if marked and name in _names(command) else ""


def _commands(name: str, context: Any) -> str:
    """Say which command was meant perhaps."""
    if name.endswith((".onnx", ".pb", ".pt", ".tflite")) or (name and Path(name).is_file()):
        return f"Write `onnxq quantize {shell_path(name)}`."
    known = sorted(getattr(getattr(context, "command", None), "commands", ()))
    meant = COMMANDS.get(name, "") if name not in known else ""
    if meant in known:
        return f"Did you mean '{meant}'?"
    if meant:
        return meant
    near = difflib.get_close_matches(name, [*known, "version", "help"], n=1, cutoff=0.6)
    if near and near[0] not in known:
        return COMMANDS[near[0]]
    return f"Did you mean '{near[0]}'?" if near else f"Commands are {join_words(known)}."


def _extra(message: str, arguments: Sequence[str]) -> list[str]:
    """Return the arguments that a message joins with blanks; those in a row as they were given, blanks in them too."""
    left = joined = message.partition("(")[2].rpartition(")")[0].partition("(")[2]
    found = []
    for word in arguments:
        if word and f"{left} ".startswith(f"{word} "):
            found.append(word)
            left = left[len(word) + 1 :]
    return found if found and not left else joined.split()


def _short(names: Sequence[str]) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:MOST_NAMES])
    return shown if len(names) <= MOST_NAMES else f"{shown} and {len(names) - MOST_NAMES} more arguments"


def _pair(extra: Sequence[str], context: Any, command: Any) -> str:
    """Write the command for a model and its data, in any order; empty where there is anything else."""
    given = getattr(context, "params", {}).get("model")
    words = [str(given), *extra] if given is not None else list(extra)
    if len(words) != 2 or "--data" not in _names(command):
        return ""
    words = [re.sub(r"^(model|data|input)=", "", word) for word in words]
    model, data = sorted(words, key=lambda word: Path(word).suffix != ".onnx")
    fits = Path(model).suffix == ".onnx" and Path(data).suffix in (".npz", ".npy")
    return f"Write `onnxq {command.name} {shell_path(model)} -d {shell_path(data)}`." if fits else ""


def _with_blanks(extra: Sequence[str], context: Any) -> str:
    """Say that a name with blanks stands in quotes, if the words of a file's name became several arguments."""
    given = getattr(context, "params", {}).get("model")
    whole = " ".join(map(str, (given, *extra)))
    return f"A name has blanks: write {shell_path(whole)}." if given is not None and Path(whole).is_file() else ""


def _one_word(word: str, arguments: Sequence[str]) -> str:
    """Say how a size is written whose unit stands behind a blank, and how several settings are."""
    if word not in arguments[1:]:
        return ""
    number = arguments[arguments.index(word, 1) - 1]
    if re.fullmatch(r"[\w.]+=\S+", word) and "--preprocess" in arguments:
        return f"Write several settings with commas: --preprocess {number},{word}."
    return f"Write the size in one word: {number}{word}." if parse_size(f"{number} {word}") is not None else ""


def _many(extra: Sequence[str], command: Any) -> str:
    """Say where arguments belong that are too many: what a shell made of a glob, mostly."""
    known = _names(command)
    files = len(extra) > 1 and all(Path(name).is_file() and Path(name).suffix != ".onnx" for name in extra)
    if (files or any(Path(name).suffix in (".npz", ".npy") for name in extra)) and "--data" in known:
        return "Repeat --data for every file, as in -d a.npz -d b.npz, or give the folder that they are in."
    if any(Path(name).suffix == ".onnx" for name in extra):
        if "--against" in known:
            return "Give the float model with --against."
        if "--output" in known:
            return "One model at a time: name the output with --output, or list several models in onnxq.toml."
        return "One model at a time."
    if getattr(command, "name", None) == "explain" and not any(Path(name).exists() for name in extra):
        return "Name several nodes by a pattern, as in 'Conv_*'."
    if len(extra) == 1 and "--data" in known and Path(extra[0]).exists():
        return f"If that is data, write `--data {shell_path(extra[0])}`."
    return ""


def _plain_value(message: str, arguments: Sequence[str]) -> str:
    """Put the words of the parser that checks numbers into ours, with the value that was given."""
    head, _, rest = message.partition(": ")
    given = (_value(option, arguments) for option in re.findall(r"'([^']+)'", head))
    value = next((one for one in given if one is not None), None)
    kind = re.match(r"Input should be a valid (integer|number)", rest)
    if kind and value is not None:
        return f"{head}: '{value}' is {NUMBERS[kind[1]]}"
    bound = re.match(r"Input should be (greater than or equal to|less than or equal to) (\S+)", rest)
    if bound:
        return f"{head}: it has to be {BOUNDS[bound[1]]} {bound[2]}, not {value}"
    return message


def _unit(message: str) -> str:
    """Say how a number is written that has a unit, or is given in percent; empty for any other message."""
    share = re.search(r"'(--[\w-]+)': it has to be at most 1, not ([\d.]+)$", message)
    if share is not None and 1 < float(share[2]) <= MOST_PERCENT:
        return f"It is a share, not a percentage: {share[1]} {float(share[2]) / MOST_PERCENT:g}."
    found = re.search(r"'(--[\w-]+)'.*: '([-+]?[\d.]+)\s*(%|dB|db|ms|s)' is no", message)
    if found is None:
        return ""
    name, number, unit = found.groups()
    what = {"--min-sqnr": "in dB, 20 is an error of a tenth", "--max-drop": "in the metric's own unit"}.get(name)
    if unit == "%" and name == "--min-sqnr":
        return f"It is a number {what}, 40 of a hundredth."
    return f"Write the number alone, {what}: {name} {number}." if what else f"Write the number alone: {name} {number}."


def _value(option: str, arguments: Sequence[str]) -> str | None:
    """Return what was given for an option, in either form."""
    for index, word in enumerate(arguments):
        if word == option and index + 1 < len(arguments):
            return arguments[index + 1]
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
    return None
