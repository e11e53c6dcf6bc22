"""Generated sheets of fictional persons: only the context can answer, and every fact is known."""

import random
from typing import NamedTuple

from replicata.papers.kvfold.question import OPTIONS, Context, Question


class Attribute(NamedTuple):
    """A kind of fact: its sentence, the question, the reply's stem, and possible values."""

    sentence: str
    question: str
    stem: str
    words: str

    @property
    def values(self) -> list[str]:
        """The possible values."""
        return self.words.split()


FIRST_NAMES = (
    "Alma Bruno Clara Dario Elena Felix Greta Hugo Irene Jonas Karin Leon Marta Nils Olga Pavel "
    "Rosa Simon Tilda Viktor"
)
LAST_NAMES = (
    "Abel Brandt Castell Dahl Ekman Farrow Grant Holm Ivers Jansen Keller Lund Moreau Novak Ortiz "
    "Palmer Quinn Rossi Stone Thorne"
)
ATTRIBUTES = {
    "job": Attribute(
        "{name} works as a {value}.",
        "What is {name}'s job?",
        "{name} works as a",
        "baker carpenter dentist farmer gardener lawyer nurse painter pilot teacher",
    ),
    "city": Attribute(
        "{name} lives in {value}.",
        "In which city does {name} live?",
        "{name} lives in",
        "Berlin Cairo Dublin Lima London Madrid Oslo Paris Prague Tokyo",
    ),
    "pet": Attribute(
        "{name} has a pet {value}.",
        "Which pet does {name} have?",
        "{name} has a pet",
        "cat dog fish goat horse lizard parrot rabbit snake turtle",
    ),
    "instrument": Attribute(
        "{name} plays the {value}.",
        "Which instrument does {name} play?",
        "{name} plays the",
        "banjo cello clarinet drums flute guitar harp piano trumpet violin",
    ),
    "sport": Attribute(
        "On weekends {name} enjoys {value}.",
        "Which sport does {name} enjoy on weekends?",
        "On weekends {name} enjoys",
        "archery boxing climbing cricket fencing golf rowing running skiing tennis",
    ),
    "drink": Attribute(
        "{name} always orders {value}.",
        "Which drink does {name} always order?",
        "{name} always orders",
        "beer cider cocoa coffee juice lemonade milk tea water wine",
    ),
    "colour": Attribute(
        "The favourite colour of {name} is {value}.",
        "What is the favourite colour of {name}?",
        "The favourite colour of {name} is",
        "black blue brown green grey orange pink purple red yellow",
    ),
    "subject": Attribute(
        "At school {name} was best in {value}.",
        "In which subject was {name} best at school?",
        "At school {name} was best in",
        "art biology chemistry drama French geography history Latin music physics",
    ),
}


def records(count: int, persons: int, questions: int, seed: int) -> list[Context]:
    """Generate ``count`` sheets of ``persons`` fictional persons with eight attributes each.

    Parameters
    ----------
    questions
        Multiple-choice questions per sheet, drawn without replacement from all
        ``8 * persons`` facts. Distractors are other persons' values of the same attribute, so
        that knowing the sheet but not whose fact it is leaves chance.
    seed
        Seed of the generator; every sheet derives its own from it.
    """
    return [_sheet(index, persons, questions, seed) for index in range(count)]


def _sheet(index: int, persons: int, questions: int, seed: int) -> Context:
    rng = random.Random(f"records|{seed}|{index}")
    first = rng.sample(FIRST_NAMES.split(), persons)
    last = rng.sample(LAST_NAMES.split(), persons)
    names = [f"{a} {b}" for a, b in zip(first, last, strict=True)]
    values = {key: rng.sample(kind.values, persons) for key, kind in ATTRIBUTES.items()}
    text = "\n\n".join(
        " ".join(
            kind.sentence.format(name=name, value=values[key][i])
            for key, kind in ATTRIBUTES.items()
        )
        for i, name in enumerate(names)
    )
    facts = rng.sample([(i, key) for i in range(persons) for key in ATTRIBUTES], questions)
    asked = []
    for i, key in facts:
        kind, answer = ATTRIBUTES[key], values[key][i]
        options = [answer, *rng.sample([v for v in values[key] if v != answer], OPTIONS - 1)]
        rng.shuffle(options)
        asked.append(
            Question(
                kind.question.format(name=names[i]),
                answer,
                kind.stem.format(name=names[i]),
                tuple(options),
                options.index(answer),
            )
        )
    return Context(f"records-{seed}-{index}", text, tuple(asked))
