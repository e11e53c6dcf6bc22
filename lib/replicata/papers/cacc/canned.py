"""An engine that answers from hand-made texts of every parse class: smoke runs without a model.

Nothing can be concluded from such a run; it shows that every path works.
"""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from replicata.inference.engine import ClosesOnExit
from replicata.inference.sampling import Completion, Sampling

TEXTS = (
    "#### 7", "7 is the result.", "**(C)**", "The answer is 12.", "4 + 3 = 7, and 7 -",
    "#### <answer>", "A) or B), I am not sure.", "1,234", r"\frac{3}{4}", "0.75", "-37", "",
    "Compute the result.", "B) because it is near", "(D)", "#### B", r"\boxed{24}",
    r"The product is $24$.", "So the final answer is 8.", "#### 1,000", "option A", "Answer: C",
    "100%", "minus 37", "I do not know.", "#### C", r"\boxed{}", "D: the last one",
    "The correct option is (A).", "12, so it is not 15",
)  # fmt: skip


class CannedEngine(ClosesOnExit):
    """Gives one of `TEXTS` for each prompt, by the prompt's own seed, or the first when greedy."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Completion]:
        """Answer each prompt; see `replicata.inference.Engine`."""
        completions = []
        for index in range(len(prompts)):
            seed = sampling.prompt_seed(index) or 0
            ids = self._tokenizer.encode(TEXTS[seed % len(TEXTS)], add_special_tokens=False)
            ids += list(sampling.stop_token_ids[:1])
            cut = ids[: sampling.max_tokens]
            completions.append(
                Completion(
                    token_ids=cut,
                    text=self._tokenizer.decode(cut, skip_special_tokens=True),
                    logprobs=[-0.5] * len(cut),
                    top_logprobs=[{} for _ in cut],
                    finish_reason="stop" if len(cut) == len(ids) else "length",
                )
            )
        return completions

    def close(self) -> None:
        """There is nothing to free."""
