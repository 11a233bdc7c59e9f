"""The bad values, texts and options that tests/bad_inputs.py uses."""

from typing import Any

__all__ = ["CELLS", "OPTIONS", "PIECES", "PLAIN", "VALUES"]

#: YAML texts of values that are wrong for most keys; a few are right for some key.
VALUES = (
    "null", "~", "true", "no", "''", '""', "' '", "[]", "{}", "[[]]", "[{}]", "[null]", "[true, 1]", "{name: x}",
    "{name: null}", "{name: 3}", "{x: 1}", "{'': 1}", "0", "-1", "1", "2", "7", "1.0", "3.5", "1e3", "-0.0", ".nan",
    ".inf", "-.inf", "nan", "1e400", "1e-400", "5e-324", "3.5e38", "1e300", "-1e300", "1.0000000001", "0.99999999999",
    "4294967295", "4294967296", "1000000000", "1000000000000", "9223372036854775807", "9223372036854775808",
    "18446744073709551616", "100000000000000000000000000000000", "9" * 5000, "0x" + "f" * 4000, "0x10", "0o17", "0b1",
    "1_000", "12:30:45", "1,5", "x", "x" * 5000, '"\\0"', '"a\\nb"', '"\\ud800"', '"\\x1b[31m"', "λ", "💥",
    '"\\u2028x"', ".", "..", "...", "./x", "../x", "/etc/passwd", "/dev/zero", "-rf", "--out", "a b", "a:b", "x:y:z",
    "os:system", ":", "no.such:Class", "npz:", "npz:.", "npz:/dev/zero", "npz:none.npz", "npz:/dev/null",
    "npz:data.npz", "npz:pipe", "mnist", "torchvision:X", "torch:x", "torch:os:getcwd", "mlp", "digits:8",
    "{csv: order.csv}", "{csv: none.csv}", "{csv: /dev/zero}", "{csv: pipe}", "{csv: .}",
    "{csv: order.csv, column: x}", "{csv: '\\0'}", "2020-01-01", "2001-12-14t21:59:43.10-05:00", "!x 3",
    "!!binary aGVsbG8=", "!!set {a, b}", "!!omap [a: 1]", "!!int x", "!!float x", "!!bool 3", "!!str 3", "!!null 3",
    "!!python/object/apply:os.system [ls]", "{1: 2}", "{[1]: 2}", "{2020-01-01: 2}", "{a: 1, a: 2}", "&a [*a]",
    "&a {b: *a}", "*none", "{<<: 3}", "{<<: {x: 1}}", "{<<: [{x: 1}, 3]}", "[" * 60 + "]" * 60, "[" * 5000,
    "[1, 2, 3]", "[0, 0, 0]", "[1.5]", "['1']", "[1000000000, 1000000000]", "[" + "7," * 3000 + "]",
    "[" + "x," * 3000 + "]", "{always: {}}", "{every: 2}", "{every: {k: 0}}", "{every: null}", "{nothing: {}}",
    "always", "{always: {}, every: 2}", "{bandwidth_aware: {c: -1}}", "{name: sgd}", "{name: asgd, lr: 1}",
    "{name: scripted}", "{name: step, base: 1}", "4GB", "4 XB", "-4GB", "1e3kB", "0B", "99999999999999999999YB", "# x",
    "- 1", "a: b", "|", ">", "'", '"', "[", "}", "%", "@", "`", "\t", "?", "? 1", "&", "*", "!",
)  # fmt: skip
PIECES = (
    "\t", "\0", "\r", "\x07", "\x85", "\u2028", "\ufeff", "λ", "💥", ":", ": ", "-", "- ", "[", "]", "{", "}", ",", "'",
    '"', "#", "&a ", "*a", "!t ", "---\n", "...\n", "%YAML 1.1\n---\n", "<<: *a\n", "? ", "|\n", ">\n", "\n", " ", "0",
    "99999", ".nan", "null", "true", "~", "!!set ", "\\", "\\x", "@", "`", "=", "<<",
)  # fmt: skip
OPTIONS = (
    ("--jobs", "0"), ("--jobs", "-1"), ("--jobs", "x"), ("--jobs", "1e3"), ("--jobs", "100000"), ("--jobs", "2"),
    ("--jobs", str(2**63)), ("--out", ""), ("--out", "/dev/null"), ("--out", "data.npz"), ("--out", "data.npz/x"),
    ("--out", "x" * 300), ("--out", "/proc/x"), ("--out", "pipe"), ("--data-root", "data.npz"),
    ("--data-root", "pipe"), ("--data-root", "/dev/null"), ("--data-root", "none"), ("--data-root", "x" * 300),
    ("--dask", ""), ("--dask", "x"), ("--dask", "tcp://"), ("--resume",), ("--resume", "x"), ("--none",), ("-x",),
    ("--",), ("",), ("=",), ("x",), ("seed=1", "seed=2"), ("seed",), ("=1",), ("..=1",), ("seed=",), ("seed=[1",),
    ("\ud800=1",), ("a\nb=1",), ("x" * 300 + "=1",), ("sweep=1",), ("sweep.seed=[1]",), ("sweep={seed: 3}",),
    ("sweep={seed: []}",), ("cases=[]",), ("sweep={'': [1]}",), ("sweep={a..b: [1]}",), ("sweep={seed.x: [1]}",),
    ("sweep={seed: [1, 1]}",), ("cases=[1]",), ("sweep={sweep: [{}]}",), ("sweep={name: [x, ..]}",),
    ("sweep={seed: [1, 2]}", "select={over: [seed, seed]}"), ("sweep={seed: [[1], {a: 1}]}",),
    ("select={over: seed}",), ("cases=[{published: 3}]",), ("published=3",), ("figures.0.name=x",),
    ("server.lr.base=1",), ("overrides={seed: 1}",), ("cases=[{cases: []}]",), ("select=[]",),
    (f"sweep={{seed: {list(range(99))}, server.lr: {list(range(1, 99))}, clients.count: {list(range(1, 99))}}}",),
    ("published={source: x, series: [{where: {seed: [1]}, points: [[1, 1]]}]}",), ("figures=[{name: x, by: [[1]]}]",),
    ("figures=[{name: x, by: seed, x: [1]}]",), ("figures=[{name: x}, {name: x}]",),
)  # fmt: skip
#: Texts for cells of tables.
CELLS = (
    "", "0", "-1", "1.5", "nan", "inf", "-inf", "1e400", "x", "9" * 30, "9" * 5000, " 1 ", "1_0", "0x1", "١", '"', '""',
    '"a\nb"', "1,2", "\0", "\ufeff1", "=cmd()", "../x", "/etc/passwd", "..", ".", "true", "None", "finished", "failed",
    "f" * 64, "\ud800", "x" * 300,
)  # fmt: skip
#: Values that replace others in JSON and YAML.
PLAIN: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**53, 2**63, 2**64, 10**30, -(2**63), 0.5, -0.0, 1e308, float("nan"),
    float("inf"), "", "x", "..", "../../x", "/etc/passwd", "f" * 64, "0", "1e9", "\0", "x" * 5000, [], {}, [[]], [None],
    {"x": 1}, [1, 2, 3], [-1], [10**9, 10**9], "O", ">f8", "|V8", "<f8", "M8[s]", "U9999", ["O", [1]], ["<f8", [-1]],
)  # fmt: skip
