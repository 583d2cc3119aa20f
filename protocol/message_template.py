"""Chat templates that print one message after another, so that what an old message became need not be made again.

A template is a program: it may print a message differently once another follows, as those do that strip the reasoning
from earlier turns. Whether one could is read from its source, and what is not known to be harmless counts as harmful.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from secrets import token_hex
from typing import Any

import jinja2
from jinja2 import nodes

_WITH_STATE = frozenset({"cycler", "joiner", "lipsum"})
"""What they give differs from call to call."""
_ITERATORS = frozenset(
    {"batch", "items", "map", "reject", "rejectattr", "reverse", "select", "selectattr", "slice", "unique"}
)
"""Filters that give what can be iterated over once: one message could use it up for the next."""
_CONSUMERS = frozenset({"count", "first", "join", "length", "list", "sort", "tojson"})


class NotByMessage(ValueError):
    """The template is not of the kind that MessageTemplate describes; the message says why."""


class MessageTemplate:
    """A template that prints a head, then each message, then a tail.

    What it makes of a message depends on the message, on the first `head_messages` of the conversation, on whether its
    place is the first, odd or even, on whether it is the last (only if `looks_at_last`), and on the arguments. So an
    even number of messages may be left out behind the first `head_messages`, and all others come out the same.
    """

    def __init__(self, source: str) -> None:
        """Raises NotByMessage, and jinja2.TemplateSyntaxError for what is no template."""
        from transformers.utils.chat_template_utils import _compile_jinja_template  # not before a tokenizer is loaded

        environment = _compile_jinja_template(source).environment  # the one that templates run in
        tree = environment.parse(source)
        self.head_messages, loop = _examined(tree)
        self.looks_at_last = "last" in _uses_of_loop(loop)
        self._mark = token_hex(16)  # what nobody can guess is in no message
        self._silent = f"silent_{self._mark}"
        loop.body[:0] = [_unless_silent(loop.target, self._silent), self._printed_mark()]
        siblings = next(body for body in _bodies(tree.body) if loop in body)
        siblings.insert(siblings.index(loop) + 1, self._printed_mark())
        self._template = jinja2.Template.from_code(
            environment, environment.compile(tree), environment.make_globals(None)
        )

    def variables(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """What `pieces` takes, of a template's arguments but for the messages."""
        return {**self._template.globals, **arguments}

    def pieces(self, messages: Sequence[dict[str, Any]], variables: Mapping[str, Any], silent: int = 0) -> list[str]:
        """The head, the text of each message but for the first `silent`, the tail. A message that the loop leaves out
        has an empty text.

        Raises whatever the template raises, NotByMessage if its loop did not run over the messages.
        """
        told = {**variables, "messages": messages, self._silent: _Same(messages[:silent])}
        context = self._template.new_context(told, shared=True)  # or it would be copied once more
        head, *texts = "".join(self._template.root_render_func(context)).split(self._mark)
        left_out = len(messages) - silent + 1 - len(texts)
        if not 0 <= left_out < max(1, self.head_messages - silent):
            raise NotByMessage(f"{len(texts)} texts of {len(messages) - silent} messages")
        return [head, *[""] * left_out, *texts]

    def _printed_mark(self) -> nodes.Output:
        return nodes.Output([nodes.TemplateData(self._mark)], lineno=1)


class _Same:
    """Contains the objects that it is given, while they live, and nothing that is but equal to one."""

    def __init__(self, values: Iterable[object]) -> None:
        self._ids = set(map(id, values))

    def __contains__(self, value: object) -> bool:
        return id(value) in self._ids


def _unless_silent(message: nodes.Node, silent: str) -> nodes.If:
    """`{% if message in silent %}{% continue %}{% endif %}`"""
    if not isinstance(message, nodes.Name):
        raise NotByMessage("its loop takes messages apart")
    test = nodes.Compare(nodes.Name(message.name, "load"), [nodes.Operand("in", nodes.Name(silent, "load"))])
    return nodes.If(test, [nodes.Continue()], [], [])


def _examined(tree: nodes.Template) -> tuple[int, nodes.For]:
    """How many messages a template may know by their place, and its loop over the messages."""
    lists = _names_of_the_list(tree)
    loops = [loop for loop in tree.find_all(nodes.For) if _is_list(loop.iter, lists)]
    if len(loops) != 1 or not any(loops[0] in body for body in _bodies(tree.body)):
        raise NotByMessage("it has not one loop over the messages")
    [loop] = loops
    if loop.test or loop.else_ or loop.recursive or any(loop.find_all(nodes.Break)):
        raise NotByMessage("its loop may leave messages out")
    if not _uses_of_loop(loop) <= {"first", "last", "parity"}:
        raise NotByMessage("a message's text depends on its place")
    _check_uses_of_list(tree, lists, loop)
    _check_state(tree, loop)
    return 1 + max(1, sum(_is_tail(each) for each in tree.find_all(nodes.Getitem))), loop


def _bodies(body: list[nodes.Node]) -> Iterator[list[nodes.Node]]:
    """The lists of statements that print to the text itself: the template's own and those of conditions in it."""
    yield body
    for statement in body:
        if isinstance(statement, nodes.If):
            for branch in (statement, *statement.elif_):
                yield from _bodies(branch.body)
            yield from _bodies(statement.else_)


def _names_of_the_list(tree: nodes.Template) -> frozenset[str]:
    """`messages`, and the names that it is given, whole or without its first messages."""
    lists = frozenset({"messages"})
    while True:
        assigned = {
            each.target.name
            for each in tree.find_all(nodes.Assign)
            if isinstance(each.target, nodes.Name) and _is_list(each.node, lists)
        }
        if assigned <= lists:
            return lists
        lists |= assigned


def _is_list(node: nodes.Node, lists: frozenset[str]) -> bool:
    return _is_name(_whole(node), lists)


def _whole(node: nodes.Node) -> nodes.Node:
    """What `x[1:]` is a part of; any other node itself."""
    return node.node if isinstance(node, nodes.Getitem) and _is_tail(node) else node


def _is_tail(node: nodes.Node) -> bool:
    """`x[1:]`"""
    if not isinstance(node, nodes.Getitem) or not isinstance(node.arg, nodes.Slice):
        return False
    part = node.arg
    return _is_constant(part.start, 1) and part.stop is None and part.step is None


def _has_name(node: nodes.Node, names: frozenset[str]) -> bool:
    return any(name.name in names for name in node.find_all(nodes.Name))


def _is_name(node: nodes.Node, names: frozenset[str]) -> bool:
    return isinstance(node, nodes.Name) and node.name in names


def _is_constant(node: nodes.Node | None, value: int) -> bool:
    return isinstance(node, nodes.Const) and type(node.value) is int and node.value == value


def _check_uses_of_list(tree: nodes.Template, lists: frozenset[str], loop: nodes.For) -> None:
    """The list may get another name or be shortened at its front, each place in the source doing so at most once; be
    asked for its first message and whether it is empty; and looped over. Nothing else."""
    renamed = [each for body in _bodies(tree.body) for each in body if isinstance(each, nodes.Assign)]
    renamed = [each for each in renamed if _is_name(each.target, lists) and _is_list(each.node, lists)]
    first = [each for each in tree.find_all(nodes.Getitem) if _is_constant(each.arg, 0)]
    asked = [counted for each in tree.find_all(nodes.Compare) if (counted := _counted_if_empty(each))]
    sources = [_whole(each) for each in (loop.iter, *(each.node for each in renamed))]
    harmless = {
        id(each) for each in (*sources, *(each.target for each in renamed), *(each.node for each in first), *asked)
    }
    for name in tree.find_all(nodes.Name):
        if name.name in lists and id(name) not in harmless:
            raise NotByMessage(f"it looks at the messages as a whole in line {name.lineno}")


def _counted_if_empty(node: nodes.Compare) -> nodes.Node | None:
    """The x of `x | length != 0` and the like."""
    count = node.expr
    if not isinstance(count, nodes.Filter) or count.name not in ("length", "count"):
        return None
    return count.node if len(node.ops) == 1 and _is_constant(node.ops[0].expr, 0) else None


def _check_state(tree: nodes.Template, loop: nodes.For) -> None:
    """Nothing that one message does may reach the next, nor may the time of day."""
    if any(tree.find_all((nodes.Block, nodes.Extends, nodes.FromImport, nodes.Import, nodes.Include))):
        raise NotByMessage("it consists of several templates")
    if any(name.name in _WITH_STATE for name in tree.find_all(nodes.Name)):
        raise NotByMessage("it uses what differs from call to call")
    clocks = _names_of_the_time(tree)
    for part in (loop, *tree.find_all(nodes.Macro)):
        if any(part.find_all(nodes.NSRef)) or _has_name(part, clocks):
            raise NotByMessage("a message's text depends on more than the message")
    consumed = {id(each.node) for each in tree.find_all(nodes.Filter) if each.name in _CONSUMERS}
    for assigned in tree.find_all((nodes.Assign, nodes.With)):
        if any(each.name in _ITERATORS and id(each) not in consumed for each in assigned.find_all(nodes.Filter)):
            raise NotByMessage("it keeps what can be iterated over only once")


def _names_of_the_time(tree: nodes.Template) -> frozenset[str]:
    """The names of what may differ from one minute to the next, even those that are only set or not."""
    clocks = frozenset({"strftime_now"})
    while True:
        told = [each for each in tree.find_all((nodes.Assign, nodes.AssignBlock, nodes.If)) if _has_name(each, clocks)]
        assigned = {name.name for each in told for name in each.find_all(nodes.Name) if name.ctx == "store"}
        if any(ref for each in told for ref in each.find_all(nodes.NSRef)):
            raise NotByMessage("it keeps the time")
        if assigned <= clocks:
            return clocks
        clocks |= assigned


def _uses_of_loop(loop: nodes.For) -> set[str]:
    """What the loop's body asks of its own `loop`: "first", "last", "parity" (of the place), or "other"."""
    return {use for statement in loop.body for use in _uses_in(statement)}


def _uses_in(node: nodes.Node) -> Iterator[str]:
    if isinstance(node, nodes.For):  # in its body, `loop` is its own
        yield from _uses_in(node.iter)
        return
    use = _use(node)
    if use:
        yield use
        return
    for child in node.iter_child_nodes():
        yield from _uses_in(child)


def _use(node: nodes.Node) -> str | None:
    if isinstance(node, nodes.Name) and node.name == "loop":
        return "other"
    if isinstance(node, nodes.Getattr) and _is_name(node.node, frozenset({"loop"})):
        return node.attr if node.attr in ("first", "last") else "other"
    if isinstance(node, nodes.Mod) and _is_place(node.left, "index0", "index") and _is_constant(node.right, 2):
        return "parity"
    if isinstance(node, nodes.Compare) and len(node.ops) == 1:
        at_start = _is_constant(node.ops[0].expr, 0) and _is_place(node.expr, "index0")
        at_start |= _is_constant(node.ops[0].expr, 1) and _is_place(node.expr, "index")
        return "first" if at_start else None
    return None


def _is_place(node: nodes.Node, *attributes: str) -> bool:
    return isinstance(node, nodes.Getattr) and _is_name(node.node, frozenset({"loop"})) and node.attr in attributes
