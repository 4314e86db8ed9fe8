"""The happens-before web of a trace: what each piece of work is behind, for certain or perhaps, and why.

The order is that of `flashnorm_lab.hazards`; a test holds the two together. Kept here besides is the way that
leads from one piece of work to another, and every link that may be there without the trace saying so.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from typing import NamedTuple

from ..program import Barrier, Launch, Query, Record, Step, Synchronize, Wait
from .trace import NOBODY, Gap, Loose, TraceProgram

BLOCKING = ("blocking", "per-thread")


class Link(NamedTuple):
    """``before`` comes before the node that has this link. ``doubt``: why it may not be so; "" if it is."""

    before: int
    along: str  # "stream", "event", "host" or "default"
    doubt: str = ""


class Web:
    """Nodes in the host's order, each with the links to what it comes after. ``step`` is -1 for a gap."""

    def __init__(self, program: TraceProgram) -> None:
        self.program = program
        self.links: list[list[Link]] = []
        self.step: list[int] = []
        self.node: dict[int, int] = {}
        """Number of a launch's step to its node."""
        self._tail: dict[str, int] = {}
        self._open: dict[str, list[int]] = defaultdict(list)  # commands since the last barrier, out of order
        self._host: dict[str, int] = {}
        self._any_host: dict[int, int] = {}
        self._events: dict[str, tuple[int, str]] = {}
        self._sure_default: dict[str, int] = {}  # by context: the default stream's last action, for certain
        self._any_default: dict[
            str, tuple[int, str, str]
        ] = {}  # ... or perhaps: its stream, or why it may be one
        self._sure_dirty: dict[str, dict[str, None]] = defaultdict(dict)  # blocking streams used since then
        self._any_dirty: dict[str, dict[str, None]] = defaultdict(dict)
        self._all: dict[int, int] = {}
        self._fresh: dict[int, dict[str, None]] = defaultdict(dict)  # streams used since then
        self._stop: dict[int, tuple[int, str]] = {}  # what any later work may have waited for, and why
        self._contexts: dict[int, set[str]] = defaultdict(set)
        for name, stream in program.streams.items():
            self._contexts[program.process[name]].add(stream.context)
        gaps = iter(program.gaps)
        gap = next(gaps, None)
        loose = sorted(program.loose)
        around: list[Loose] = []
        for number, step in enumerate(program.steps):
            while gap is not None and gap.at <= number:
                self._gap(gap)
                gap = next(gaps, None)
            while loose and loose[0].first <= number:
                around.append(loose.pop(0))
            around = [run for run in around if run.last >= number]
            for run in around:
                self._anywhere(run)
            self._add(number, step)

    def launch(self, node: int) -> int | None:
        """The number of the step whose work this node is; None for a node of any other kind."""
        return self.step[node] if self.node.get(self.step[node]) == node else None

    # What the steps say

    def _new(self, step: int, links: list[Link]) -> int:
        self.links.append(links)
        self.step.append(step)
        return len(self.links) - 1

    def _add(self, number: int, step: Step) -> None:
        match step:
            case Launch():
                after = [link for event in step.after for link in self._recorded(event, step.thread)]
                node = self.node[number] = self._act(number, step.stream, step.thread, after)
                if self.program.streams[step.stream].kind == "out-of-order":
                    self._open[step.stream].append(node)
                if step.blocks:
                    self._host_node(number, step, [Link(node, "host")])
            case Record():
                self._events[step.event] = (self._act(number, step.stream, step.thread, []), step.thread)
            case Wait():
                self._wait(number, step)
            case Barrier():
                ahead = [Link(node, "stream") for node in self._open.pop(step.stream, ())]
                node = self._act(number, step.stream, step.thread, ahead)
                self._tail[step.stream] = node
                self._events[step.event] = (node, step.thread)
            case Synchronize() | Query():
                self._synchronize(number, step)

    def _act(self, step: int, stream: str, thread: str, links: list[Link]) -> int:
        """A node on a stream: behind what the stream had, what the host knows, and what may hold it up."""
        links = links + self._known(stream, thread)
        if stream in self._tail:
            links.append(Link(self._tail[stream], "stream"))
        stop = self._stop.get(self.program.process[stream])
        if stop is not None:
            links.append(Link(stop[0], "event", stop[1]))
        node = self._new(step, links)
        if self.program.streams[stream].kind != "out-of-order":
            self._tail[stream] = node
            self._default_stream(node, stream)
        self._used(stream)
        return node

    def _wait(self, number: int, step: Wait) -> None:
        """A wait holds up what comes behind it, and only on the default stream it is more than that."""
        links = self._recorded(step.event, step.thread)
        doubt = next((link.doubt for link in links), "") if links else "its event is recorded nowhere"
        if self._may(step.stream, "legacy") and not doubt:
            self._act(number, step.stream, step.thread, links)
        elif doubt:
            self._perhaps_waits(number, step.stream, step.thread, links, doubt)
        else:
            self._hold(number, step.stream, links + self._known(step.stream, step.thread))

    def _hold(self, step: int, stream: str, links: list[Link]) -> None:
        if stream in self._tail:
            links.append(Link(self._tail[stream], "stream"))
        self._tail[stream] = self._new(step, links)
        self._used(stream)

    def _known(self, stream: str, thread: str) -> list[Link]:
        """What the host had waited for when it made a call; another thread may have told it more."""
        links = []
        known, other = self._host.get(thread), self._any_host.get(self.program.process[stream])
        if known is not None:
            links.append(Link(known, "host"))
        if other is not None and other != known:
            doubt = "another host thread had waited before; whether this one was told is not in the trace"
            links.append(Link(other, "host", doubt))
        return links

    def _recorded(self, event: str, thread: str) -> list[Link]:
        if event not in self._events:
            return []
        node, by = self._events[event]
        if by == thread:
            return [Link(node, "event" if by != NOBODY else "stream")]
        doubt = f"recorded by {by} and waited for by {thread}: what makes that sure is not in the trace"
        return [Link(node, "event", doubt)]

    def _synchronize(self, number: int, step: Synchronize | Query) -> None:
        if step.event is not None:
            self._host_node(number, step, self._recorded(step.event, step.thread))
        elif step.stream is not None:
            self._host_node(number, step, self._done_with(step.stream))
        else:
            everything = self._everything(self.program.process[step.thread])
            self._host_node(number, step, [Link(everything, "host")])

    def _host_node(self, number: int, step: Launch | Synchronize | Query, links: list[Link]) -> None:
        if step.thread in self._host:
            links = [*links, Link(self._host[step.thread], "host")]
        self._learn(self.program.process[step.thread], step.thread, self._new(number, links))

    def _learn(self, process: int, thread: str, node: int) -> None:
        """A thread knows what ``node`` is behind; keep too what all threads of the process know together."""
        before, own = self._any_host.get(process), self._host.get(thread)
        self._host[thread] = self._any_host[process] = node
        if before is not None and before != own:
            self._any_host[process] = self._new(-1, [Link(node, "host"), Link(before, "host")])

    def _done_with(self, stream: str) -> list[Link]:
        """What a synchronization of one stream waits for; blocking streams wait for the default one, and it
        for them."""
        links = [Link(self._tail[stream], "host")] if stream in self._tail else []
        context = self.program.streams[stream].context
        if self._may(stream, "legacy"):
            for other, node in self._tail.items():
                if self.program.streams[other].context == context and self._may(other, *BLOCKING):
                    links.append(Link(node, "host", self._kinds_doubt(stream, other)))
        return links + self._behind_default(stream)

    def _behind_default(self, stream: str) -> list[Link]:
        """What a blocking stream waits for, since something was done to the default stream."""
        if not self._may(stream, *BLOCKING):
            return []
        context = self.program.streams[stream].context
        links = []
        if stream not in self.program.maybe and context in self._sure_default:
            links.append(Link(self._sure_default[context], "default"))
        if context in self._any_default:
            node, default, why = self._any_default[context]
            doubt = why or self._kinds_doubt(default, stream)
            if doubt:
                links.append(Link(node, "default", doubt))
        return links

    def _everything(self, process: int) -> int:
        """A node behind everything that was given to the process's streams so far."""
        links = [Link(self._all[process], "stream")] if process in self._all else []
        for stream in self._fresh[process]:
            if stream in self._tail:
                links.append(Link(self._tail[stream], "stream"))
            links += [Link(node, "stream") for node in self._open[stream]]
        self._fresh[process].clear()
        self._all[process] = self._new(-1, links)
        return self._all[process]

    # The default stream

    def _may(self, stream: str, *kinds: str) -> bool:
        return self.program.streams[stream].kind in kinds or self.program.maybe.get(stream) in kinds

    def _kinds_doubt(self, *streams: str) -> str:
        unknown = [stream for stream in dict.fromkeys(streams) if stream in self.program.maybe]
        if not unknown:
            return ""
        kinds = (
            f"the kinds of {' and '.join(unknown)} are"
            if len(unknown) > 1
            else f"the kind of {unknown[0]} is"
        )
        return f"{kinds} not known; blocking streams and the default stream wait for each other"

    def _used(self, stream: str) -> None:
        """A stream was given something: what comes to the default stream next may have to wait for it."""
        what = self.program.streams[stream]
        if what.kind in BLOCKING:
            self._sure_dirty[what.context][stream] = None
        if self._may(stream, *BLOCKING):
            self._any_dirty[what.context][stream] = None
        self._fresh[self.program.process[stream]][stream] = None

    def _default_stream(self, node: int, stream: str) -> None:
        """The order between the legacy default stream and blocking streams, known or possible."""
        context, links = self.program.streams[stream].context, self.links[node]
        if not self._may(stream, "legacy"):
            links += self._behind_default(stream)
            return
        if stream not in self.program.maybe:
            links += [Link(self._tail[other], "default") for other in self._sure_dirty[context]]
            self._sure_dirty[context].clear()
            self._sure_default[context] = node
        for other in self._any_dirty[context]:
            doubt = self._kinds_doubt(stream, other)
            if doubt:
                links.append(Link(self._tail[other], "default", doubt))
        if context in self._any_default:
            before, default, why = self._any_default[context]
            links.append(Link(before, "default", why or self._kinds_doubt(default, stream)))
        self._any_dirty[context].clear()
        self._any_default[context] = (node, stream, "")

    def _perhaps_default(self, context: str, why: str) -> None:
        """Something that may have been done to the default stream."""
        links = [Link(self._tail[stream], "default", why) for stream in self._any_dirty[context]]
        if context in self._any_default:
            links.append(Link(self._any_default[context][0], "default", why))
        if links:
            self._any_dirty[context].clear()
            self._any_default[context] = (self._new(-1, links), "", why)

    # What the trace does not say

    def _gap(self, gap: Gap) -> None:
        if gap.kind == "memory":
            return
        if gap.kind == "launch":
            why = f"blocking streams wait for the default stream, and it may have been that: {gap.text}"
            for context in self._contexts[gap.process]:
                self._perhaps_default(context, why)
            return
        if gap.event in self._events:
            source = self._events[gap.event][0]
        elif gap.behind in self._tail:
            source = self._tail[gap.behind]
        else:
            source = self._everything(gap.process)
        maybe = [Link(source, "event" if gap.kind == "wait" else "host", gap.text)]
        if gap.kind == "wait" and gap.stream:
            self._perhaps_waits(-1, gap.stream, gap.thread, maybe, gap.text)
        elif gap.kind == "wait" or not gap.thread:
            before = self._stop.get(gap.process)
            more = [Link(before[0], "event", before[1])] if before is not None else []
            self._stop[gap.process] = (self._new(-1, maybe + more), gap.text)
        else:
            if gap.thread in self._host:
                maybe.append(Link(self._host[gap.thread], "host"))
            self._learn(gap.process, gap.thread, self._new(-1, maybe))

    def _perhaps_waits(self, number: int, stream: str, thread: str, links: list[Link], doubt: str) -> None:
        """A stream may wait. If its event was not recorded yet, the call does nothing: so all is in doubt."""
        known = [Link(before, along, doubt) for before, along, _ in self._known(stream, thread)]
        self._hold(number, stream, links + known)
        if self._may(stream, "legacy"):
            context = self.program.streams[stream].context
            self._any_dirty[context][stream] = None
            self._perhaps_default(context, doubt)

    def _anywhere(self, run: Loose) -> None:
        """Launches of a stream were issued somewhere around here, by whom is not known."""
        process, unseen = (
            self.program.process[run.stream],
            f"on {run.stream} of which the call is not in the trace",
        )
        if self._may(run.stream, "legacy"):
            why = f"something {unseen}: it may be the default stream, for which blocking streams wait"
            self._perhaps_default(self.program.streams[run.stream].context, why)
        done = [link.before for link in self._done_with(run.stream)] if run.waits else []
        if done:
            why = f"a copy {unseen}, for which the host may have waited"
            before = self._stop.get(process)
            links = [Link(node, "host", why) for node in done]
            links += [Link(before[0], "event", before[1])] if before is not None else []
            self._stop[process] = (self._new(-1, links), why)

    # Questions

    def reach(self, numbers: dict[int, int], certain: bool) -> list[int]:
        """For every node, the highest of the numbered nodes that it is behind or is; 0 for none.

        The numbered nodes are launches of one stream, numbered from 1 in its order: what is behind one of
        them is behind all before it too. ``certain``: by links without doubt only.
        """
        found: list[int] = []
        for node, links in enumerate(self.links):
            best = numbers.get(node, 0)
            for before, _, doubt in links:
                if found[before] > best and not (certain and doubt):
                    best = found[before]
            found.append(best)
        return found

    def behind(self, node: int, found: list[int], certain: bool) -> int:
        """The highest numbered node that this one comes after."""
        return max((found[b] for b, _, doubt in self.links[node] if not (certain and doubt)), default=0)

    def way(
        self, first: int, number: int, second: int, found: list[int], certain: bool
    ) -> list[tuple[int, Link]]:
        """The simplest way from ``first``, numbered ``number``, to ``second``: nodes with their links back.

        Simplest: the fewest doubts, then the fewest turns from one stream, or the host, to another.
        """
        cost = {second: (0, 0)}
        came: dict[int, tuple[int, Link]] = {}
        queue = [((0, 0), -second)]
        while queue:
            at, minus = heapq.heappop(queue)
            node = -minus
            if node == first:
                break
            if at > cost[node]:
                continue
            for link in self.links[node]:
                if found[link.before] < number or (certain and link.doubt):
                    continue
                price = (at[0] + bool(link.doubt), at[1] + (link.along != "stream"))
                if link.before not in cost or price < cost[link.before]:
                    cost[link.before] = price
                    came[link.before] = (node, link)
                    heapq.heappush(queue, (price, -link.before))
        way = []
        node = first
        while node != second:
            node, link = came[node]
            way.append((node, link))
        return way
