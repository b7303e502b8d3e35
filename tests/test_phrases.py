"""The check of phrases finds each excluded phrase, and accepts plain sentences."""

import phrases
import pytest

EXCLUDED = [
    "a list that is no list",
    "one a row",
    "a line a task",
    "looked up once a type, since there are many",
    "small layers come by the dozen",
    "whoever looks at it",
    "so many tasks",
    "the paper's road",
    "as many as are new by the book",
    "the result would be of no use",
    "a number of seconds from 0 on",
    "ten tasks learnt in sequence",
    "the run goes on",
    "told by its name",
    "all but the coefficients",
    "drawn anew",
    "What comes back is a vector.",
]
ACCEPTED = [
    "There is no GPU. This is no longer true.",
    "one row per task",
    "Once a task is over, a step may hurt.",
    "the memory of a step",
    "so many that it fails",
    "many uses of it",
    "it makes use of it",
    "the hook goes on the module",
    "What is the rank?",
]


@pytest.mark.parametrize("phrase", EXCLUDED)
def test_an_excluded_phrase_is_found(phrase):
    assert len(phrases.findings(f"First line.\n\n{phrase}\n", python=False)) == 1


@pytest.mark.parametrize("phrase", ACCEPTED)
def test_a_plain_sentence_is_accepted(phrase):
    assert phrases.findings(phrase, python=False) == []


def test_every_rule_has_an_example():
    found = {finding.rule for text in EXCLUDED for finding in phrases.findings(text, python=False)}
    assert found == set(phrases.RULES)


def test_python_is_searched_in_docstrings_comments_and_strings_only():
    text = '"""Sum.\n\nOne\na row.\n"""\n\nlearnt = 1  # learnt\nprint("is no list, learnt")\n'
    lines = [finding.line for finding in phrases.findings(text, python=True)]
    assert lines == [3, 7, 8, 8]


def test_a_marked_line_may_hold_any_phrase():
    assert phrases.findings("learnt <!-- phrase: allow -->\nlearnt\n\nlearnt", False) == [
        phrases.Finding(4, "learnt", "write 'learned'")
    ]


def test_main_prints_file_line_phrase_and_rule(capsys):
    path = phrases.ROOT / "tests" / "test_phrases.py"
    assert phrases.main([str(path)]) == 1
    assert "tests/test_phrases.py:7: 'is no': negate the verb" in capsys.readouterr().out
