"""Locating keys: the right line for each path, on every shape TOML allows."""

import tomllib

import pytest

from tfopt.job.recipe_file import Source, dotted, line_numbers

TRICKY = '''\
# [[chain]] sparsity = 9   a comment is no table
tfopt = 1
title = """
[[chain]]
sparsity = 1 ""\\" still text """""
literal = \'\'\'
x = "unclosed # \'\'
[arguments]\'\'\'
path = 'C:\\'
"quoted # key".'with = sign' . bare-1 = "]}\\""

[arguments]   # = x
epochs = 4
when = 1979-05-27 07:32:00
nested = [
    1,  # ] a bracket in a comment
    [2, "]"],
    { a = 3, "b" = [4,
                    5] },
]
empty = []
none = {}

[[ chain ]]
transform = "prune"
sparsity = 0.5

[chain.options]
sparsity = 0.6

[[chain]]
sparsity = 0.7
options.sparsity = 0.8
options.deep.sparsity = 0.9

[[chain.parts]]
sparsity = 0.1
[[chain.parts]]
sparsity = 0.2
[chain.parts.options]
sparsity = 0.3

[late.sub]
x = 1
[late]
y = 2
'''


def paths_of(value, path=()):
    yield path
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from paths_of(item, (*path, key))


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n\n# only a comment",
        "a=1",
        "a = ''\nb = \"\"\nc = ''''''\nd = \"\"\"\"\"\"\n",
        'a = """"quoted""""\nb = """two"""""\nc = \'\'\'\'x\'\'\'\'\n',
        'a = "\\\\"\nb = """\\\\"""\nc = 1',
        "a = [[], [[1], {b = {c = [2]}}],]\nd = -inf",
        "[a]\n[a.b.c]\n[[a.d]]\n[[a.d.e]]\n[[a.d]]\n[[a.d.e]]\n[a.d.e.f]",
        'a."\\u00e9\\"]".b = 1',
        "a = 1 # , ] }\nb = [1 # ] }\n, 2]\nc = 3",
        "1.2 = 3\n[4.5]\n6 = 7.8e9",
        TRICKY,
    ],
)
def test_exactly_the_paths_of_the_parsed_document_are_found(text, newline):
    text = text.replace("\n", newline)
    assert set(line_numbers(text)) == set(paths_of(tomllib.loads(text)))


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_lines_are_those_an_editor_shows(newline):
    shown = TRICKY.splitlines()
    found = line_numbers(TRICKY.replace("\n", newline))

    def text_at(*path):
        return shown[found[path] - 1].strip()

    assert text_at("literal") == "literal = '''"
    assert text_at("path") == "path = 'C:\\'"
    assert text_at("arguments") == "[arguments]   # = x"
    assert text_at("arguments", "nested", 1) == '[2, "]"],'
    assert text_at("arguments", "nested", 1, 1) == '[2, "]"],'
    assert text_at("arguments", "nested", 2, "b") == '{ a = 3, "b" = [4,'
    assert text_at("arguments", "nested", 2, "b", 1) == "5] },"
    assert text_at("chain", 0) == "[[ chain ]]"
    assert text_at("late") == "[late]"
    same_key = {
        ("chain", 0, "sparsity"): "0.5",
        ("chain", 0, "options", "sparsity"): "0.6",
        ("chain", 1, "sparsity"): "0.7",
        ("chain", 1, "options", "sparsity"): "0.8",
        ("chain", 1, "options", "deep", "sparsity"): "0.9",
        ("chain", 1, "parts", 0, "sparsity"): "0.1",
        ("chain", 1, "parts", 1, "sparsity"): "0.2",
        ("chain", 1, "parts", 1, "options", "sparsity"): "0.3",
    }
    for path, value in same_key.items():
        assert text_at(*path).endswith(f"sparsity = {value}"), path


def test_a_key_that_is_not_there_is_placed_on_its_table():
    source = Source("x.toml", line_numbers("a = 1\n\n[[chain]]\nb = 2\n"))
    assert source.where(("chain", 0, "c", "d")) == "x.toml:3: chain[0].c.d"
    assert source.where(("chain", 0, "b")) == "x.toml:4: chain[0].b"
    assert source.where(("z",)) == "x.toml:1: z"
    assert Source().where(("chain", 0)) == "chain[0]"


def test_a_key_that_needs_quotes_has_them():
    assert dotted(("a", 0, "b c", "d")) == 'a[0]."b c".d'
