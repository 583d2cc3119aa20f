import pytest

from policies.affinity import StickyUntilSaturated
from policies.expected_work import ExpectedWork
from policies.registry import DEFAULT, NAMES, make_policy
from policies.views import RequestView
from tests.policies.fleet import best, costs, worker
from tests.policies.own import ByName

OWN = "tests.policies.own"


def test_every_name_makes_a_policy() -> None:
    assert DEFAULT in NAMES
    for name in NAMES:
        assert len(costs(name, RequestView(10), worker("a"))) == 1


def test_parameters_are_read_by_their_kind() -> None:
    assert make_policy("expected_work:omega=2:answer_tokens=1e3") == ExpectedWork(omega=2.0, answer_tokens=1000.0)
    sticky = make_policy("sticky_until_saturated:affinity_threshold=1:decode_bound=true")
    assert sticky == StickyUntilSaturated(affinity_threshold=1.0, decode_bound=True)
    own = make_policy(f"{OWN}:ByName:letter=x:times=-3:share=0:reverse=false")
    assert own == ByName("x", -3, 0.0, False)


def test_a_policy_of_the_user_s_own() -> None:
    assert best(f"{OWN}:plain", RequestView(1), worker("a"), worker("p1")) == {"p1"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fastest", r"unknown policy 'fastest': one of .*round_robin.*, or your own as package\.module:factory"),
        ("", r"unknown policy ''"),
        (
            "expected_work:w=1",
            r"no parameter 'w': it takes omega, miss_price, answer_tokens, prefill_token_ms, prefill_pass_ms, ",
        ),
        ("random:w=1", r"policy random has no parameter 'w': it takes none"),
        ("expected_work:omega", r"omega must be a number >= 0, not ''"),
        ("expected_work:omega=-1", r"omega must be a number >= 0, not '-1'"),
        ("expected_work:omega=nan", r"omega must be a number >= 0, not 'nan'"),
        ("expected_work:omega=inf", r"omega must be a number >= 0, not 'inf'"),
        ("two_tier:cache_threshold=1.5", r"cache_threshold must be a number from 0 to 1, not '1.5'"),
        ("chwbl:load_factor=0.9", r"load_factor must be a number >= 1, not '0.9'"),
        ("sticky_until_saturated:decode_bound=1", r"decode_bound must be true or false, not '1'"),
        (f"{OWN}:ByName:letter=a:times=1.5", r"own:ByName: times must be a whole number, not '1.5'"),
        (f"{OWN}:ByName:letter=a:share=2", r"own:ByName: share must be a number from 0 to 1, not '2'"),
        (f"{OWN}:ByName:size=2", r"own:ByName has no parameter 'size': it takes letter, times, share, reverse"),
        (f"{OWN}:ByName", r"own:ByName: .*missing 1 required positional argument: 'letter'"),
        (f"{OWN}:hides_its_parameters", r"its parameters cannot be read: NameError.*Missing"),
        (f"{OWN}:fails", r"own:fails: no table"),
        (f"{OWN}:returns_nothing", r"own:returns_nothing: the factory returned None, which cannot be called"),
        (f"{OWN}:not_callable", r"tests\.policies\.own has no factory 'not_callable'"),
        (f"{OWN}:absent", r"tests\.policies\.own has no factory 'absent'"),
        (OWN, r"tests\.policies\.own has no factory ''"),
        ("no.such.module:make", r"cannot import no\.such\.module: ModuleNotFoundError"),
        (".policies:make", r"cannot import \.policies: TypeError"),
    ],
)
def test_bad_names_say_what_is_allowed(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_policy(text)
