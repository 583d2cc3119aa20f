import jinja2
import pytest

from protocol.chat_template import iterates_over_content, knows_developer_role


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", False),
        ("{% for m in messages %}{{ m['content'] | trim }}{% endfor %}", False),
        ("{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}", True),
        ("{% for m in messages %}{% for p in m['content'][1:] | list %}{{ p.text }}{% endfor %}{% endfor %}", True),
        (
            "{% for m in messages %}{% set content = m.content %}{% for p in content %}.{% endfor %}{% endfor %}",
            True,
        ),
        ("{% for m in messages %}{% for t in m.tool_calls %}{{ t }}{% endfor %}{% endfor %}", False),
        ("{% macro show(c) %}{% for p in c %}{{ p }}{% endfor %}{% endmacro %}{{ show(messages[0].content) }}", True),
        ("{% macro show(c) %}{% for p in c %}{{ p }}{% endfor %}{% endmacro %}{{ show(c=messages[0].content) }}", True),
        ("{% macro show(c) %}{% for p in c %}{{ p }}{% endfor %}{% endmacro %}{{ show(tools) }}{{ m.content }}", False),
        ("{% for m in messages %}{%- generation -%}{{ m.content }}{% endgeneration %}{% break %}{% endfor %}", False),
    ],
)
def test_iterates_over_content(template: str, expected: bool) -> None:
    assert iterates_over_content(template) is expected


def test_broken_templates_are_refused() -> None:
    with pytest.raises(jinja2.TemplateSyntaxError):
        iterates_over_content("{% for %}")


def test_developer_role_is_known_where_it_is_named() -> None:
    assert knows_developer_role("{% if m.role == 'developer' %}")
    assert not knows_developer_role("{{ developer }}")
