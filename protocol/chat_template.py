"""What a chat template expects of its messages, read from its source as vLLM does (vllm/renderers/hf.py).

Some templates print `message.content` as a string; others iterate over a list of parts. Nothing declares which.
"""

import re
from collections.abc import Iterator

import jinja2
from jinja2 import nodes

_GENERATION_TAGS = re.compile(r"\{%[-+]?\s*(?:end)?generation\s*[-+]?%\}")  # transformers' own, unknown to jinja


def iterates_over_content(template: str) -> bool:
    """Whether some loop runs over a message's content, so that content has to be a list of parts.

    Raises jinja2.TemplateSyntaxError for what is no template.
    """
    environment = jinja2.Environment(extensions=["jinja2.ext.loopcontrols"])
    tree = environment.parse(_GENERATION_TAGS.sub("", template))
    if any(_is_content(loop.iter, {"content"}) for loop in tree.find_all(nodes.For)):
        return True
    return any(
        _is_content(loop.iter, _content_parameters(tree, macro))
        for macro in tree.find_all(nodes.Macro)
        for loop in macro.find_all(nodes.For)
    )


def knows_developer_role(template: str) -> bool:
    """Whether the template names the role `developer`."""
    return "'developer'" in template or '"developer"' in template


def _is_content(node: nodes.Node | None, names: set[str]) -> bool:
    """`x.content`, `x['content']` or one of `names`, also filtered, tested or sliced."""
    if isinstance(node, nodes.Filter | nodes.Test):
        return _is_content(node.node, names)
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
        return _is_content(node.node, names)
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    return isinstance(node, nodes.Name) and node.name in names


def _content_parameters(tree: nodes.Template, macro: nodes.Macro) -> set[str]:
    """The macro's parameters that some call gives a message's content."""
    return {
        name
        for call in tree.find_all(nodes.Call)
        if isinstance(call.node, nodes.Name) and call.node.name == macro.name
        for name, argument in _arguments(macro, call)
        if _is_content(argument, set())
    }


def _arguments(macro: nodes.Macro, call: nodes.Call) -> Iterator[tuple[str, nodes.Node]]:
    yield from zip((parameter.name for parameter in macro.args), call.args, strict=False)
    yield from ((keyword.key, keyword.value) for keyword in call.kwargs)
