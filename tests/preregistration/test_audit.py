"""Honest runs raise no alarm."""


from replicata.preregistration.audit import audit

NOT_IN_A_TOY = {"A4": "NOT INDEPENDENT", "A6": "SKIP"}


def statuses(result):
    return {item.id: item.status for item in result.items}


def test_an_honest_run_passes(analysed):
    result = audit(analysed)
    print("\n".join(map(str, result.items)))
    assert not result.failed
    expected = {f"A{n}": NOT_IN_A_TOY.get(f"A{n}", "PASS") for n in range(1, 21)}
    assert statuses(result) == expected
