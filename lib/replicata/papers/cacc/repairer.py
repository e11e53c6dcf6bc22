"""Repair by the proposer's own model: short forced continuations (spec 3.3), and P(True) scores.

Nothing here is trained, and nothing here sees a gold answer. A continuation depends on the question
and on the candidate's text alone, so it is computed once for all arms.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from replicata.inference import Sampling
from replicata.inference.sampling import decode
from replicata.inference.scoring import Scored, score_options
from replicata.papers.cacc.method import Repaired
from replicata.papers.cacc.pool import Asked, Candidate
from replicata.papers.cacc.prompts import FORCED, PromptStyle, messages, verdict_messages
from replicata.papers.cacc.proposer import Proposer
from replicata.papers.cacc.tasks import LETTERS

#: A forced continuation ends at the first of these.
_ENDS = {"number": "\n", "latex": "}"}


@dataclass
class ModelRepairer:
    """Continues fragments with the selector's expected prefix, by the model that wrote them.

    Attributes
    ----------
    proposer
        Model and engine.
    max_tokens
        Greedy tokens of a forced number or expression. A letter costs one.
    """

    proposer: Proposer
    max_tokens: int
    _known: dict[tuple[str, str, str], Repaired] = field(default_factory=dict)

    def __call__(
        self, asked: Asked, candidates: Sequence[tuple[int, Candidate]]
    ) -> dict[int, Repaired]:
        """Return the repaired text of each candidate, by its index."""
        self.prepare([(asked, candidate) for _, candidate in candidates])
        return {index: self._known[_key(asked, candidate)] for index, candidate in candidates}

    def prepare(self, fragments: Sequence[tuple[Asked, Candidate]]) -> None:
        """Compute many continuations at once, which is much faster than one question at a time."""
        missing = {_key(*one): one for one in fragments if _key(*one) not in self._known}
        letters = {key: one for key, one in missing.items() if one[0].mode == "letter"}
        values = {key: one for key, one in missing.items() if one[0].mode != "letter"}
        self._known |= self._letters(letters) | self._values(values)

    def _letters(
        self, fragments: dict[tuple[str, str, str], tuple[Asked, Candidate]]
    ) -> dict[tuple[str, str, str], Repaired]:
        """Take the likeliest of the options' letters as the next token."""
        tokenizer = self.proposer.loaded.tokenizer
        prompts = []
        for asked, candidate in fragments.values():
            chat, tail = self._parts(asked, candidate)
            options = tuple(
                tuple(tokenizer.encode(LETTERS[i], add_special_tokens=False))
                for i in range(len(asked.options))
            )
            prompts.append(Scored((chat, tail), options))
        scores = score_options(self.proposer.loaded, prompts)
        return {
            key: _likeliest_letter(asked, row)
            for (key, (asked, _)), row in zip(fragments.items(), scores, strict=True)
        }

    def _values(
        self, fragments: dict[tuple[str, str, str], tuple[Asked, Candidate]]
    ) -> dict[tuple[str, str, str], Repaired]:
        """Continue greedily by a few tokens."""
        prompts = [sum(self._parts(*one), ()) for one in fragments.values()]
        sampling = Sampling(
            max_tokens=self.max_tokens, stop_token_ids=self.proposer.loaded.stop_token_ids
        )
        completions = [
            completion
            for cut in self.proposer.batches(prompts)
            for completion in self.proposer.engine.generate([prompts[i] for i in cut], sampling)
        ]
        repaired = {}
        for (key, (asked, _)), completion in zip(fragments.items(), completions, strict=True):
            text, logprob = self._until(
                _ENDS[asked.mode], completion.token_ids, completion.logprobs
            )
            repaired[key] = Repaired(
                (FORCED[asked.mode] + text).lstrip("\n"), logprob, len(completion.token_ids)
            )
        return repaired

    def _parts(self, asked: Asked, candidate: Candidate) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the chat that the candidate answered, and its text with the forced prefix."""
        style: PromptStyle = "enhanced" if candidate.source == "enhanced" else "plain"
        tail = self.proposer.loaded.tokenizer.encode(
            candidate.text + FORCED[asked.mode], add_special_tokens=False
        )
        return self.proposer.encode(messages(asked, style)), tuple(tail)

    def _until(
        self, end: str, token_ids: Sequence[int], logprobs: Sequence[float]
    ) -> tuple[str, float]:
        """Cut a continuation at ``end``; return its text and the probability of its tokens."""
        loaded = self.proposer.loaded
        for n in range(1, len(token_ids) + 1):
            text = decode(loaded.tokenizer, token_ids[:n], loaded.stop_token_ids)
            if end in text:
                closed = end if end == "}" else ""
                return text.partition(end)[0] + closed, math.exp(sum(logprobs[:n]))
        return decode(loaded.tokenizer, token_ids, loaded.stop_token_ids), math.exp(sum(logprobs))


def _key(asked: Asked, candidate: Candidate) -> tuple[str, str, str]:
    return asked.id, candidate.source, candidate.text


def _likeliest_letter(asked: Asked, logprobs: Sequence[float]) -> Repaired:
    """Return the letter with the highest log-probability among all options' letters."""
    best = max(range(len(asked.options)), key=lambda i: logprobs[i])
    text = f"{FORCED['letter'].lstrip()}{LETTERS[best]})"
    return Repaired(text, math.exp(logprobs[best]), 1)


def truth_scores(
    proposer: Proposer, answers: Sequence[tuple[Asked, str]]
) -> dict[tuple[str, str], float]:
    """Return log p("Yes") - log p("No") for each question and answer, by (question id, answer).

    The model judges its own answers (P(True), Kadavath et al. 2022, arXiv 2207.05221).
    """
    encode = proposer.loaded.tokenizer.encode
    options = tuple(tuple(encode(word, add_special_tokens=False)) for word in ("Yes", "No"))
    different = list(dict.fromkeys(answers))
    prompts = [Scored(_split(proposer, *one), options) for one in different]
    scores = score_options(proposer.loaded, prompts)
    return {
        (asked.id, answer): yes - no
        for (asked, answer), (yes, no) in zip(different, scores, strict=True)
    }


def _split(proposer: Proposer, asked: Asked, answer: str) -> tuple[tuple[int, ...], ...]:
    """Return the verifier's prompt in two parts, so that a question's answers share the first."""
    prompt = proposer.encode(verdict_messages(asked, answer))
    other = proposer.encode(verdict_messages(asked, f"|{answer}"))
    same = next(i for i, (a, b) in enumerate(zip(prompt, other, strict=False)) if a != b)
    return prompt[:same], prompt[same:]
