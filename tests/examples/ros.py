"""A stub of rclpy and its messages, as published: docs.ros.org/en/humble/p/rclpy, definitions of rosbags.

Messages take keywords only, have a default for every field, reject unknown fields and wrong types, and their
`byte` fields are ``bytes``. Nodes keep what they publish; `spin` delivers what the test has queued.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

DEFAULTS = {"string": "", "bool": False, "byte": b"\x00", "float64": 0.0, "float32": 0.0}


def message_class(store: Any, name: str) -> type:
    """Build the class of a message from its definition."""
    constants, fields = store.fielddefs[name]

    def default(definition: Any) -> Any:
        kind, content = definition
        if kind == 1:
            return DEFAULTS.get(content[0], 0)
        if kind == 2:
            return message_class(store, content)()
        base, length = content
        if kind == 3:
            return np.zeros(length) if base[0] == 1 else [default(base) for _ in range(length)]
        return []

    def check(key: str, definition: Any, value: Any) -> Any:
        kind, content = definition
        if kind == 1:
            allowed = {"string": str, "byte": bytes, "bool": bool, "float64": float, "float32": float}
            assert isinstance(value, allowed.get(content[0], int)), f"{name}.{key}: {value!r}"
        elif kind == 2:
            assert type(value).__name__ == content.rpartition("/")[2], f"{name}.{key}: {value!r}"
        elif kind == 3:
            assert len(value) == content[1], f"{name}.{key}: {len(value)} values"
        return value

    def init(self: Any, **values: Any) -> None:
        unknown = values.keys() - {key for key, _ in fields}
        assert not unknown, f"Invalid arguments passed to constructor: {unknown}"
        for key, definition in fields:
            setattr(self, key, check(key, definition, values[key]) if key in values else default(definition))

    members = {key: bytes([value]) if kind == "byte" else value for key, kind, value in constants}
    return type(name.rpartition("/")[2], (), {**members, "__init__": init})


class Node:
    """A node with its parameters, publishers and subscriptions."""

    def __init__(self, node_name: str) -> None:
        self.name, self.published, self.subscriptions = node_name, [], {}
        self._parameters: dict[str, Any] = {}
        self.destroyed = False
        RUNNING.append(self)

    def declare_parameter(self, name: str, value: Any) -> SimpleNamespace:
        assert name not in self._parameters
        self._parameters[name] = PARAMETERS.get(name, value)
        return self.get_parameter(name)

    def get_parameter(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(name=name, value=self._parameters[name])

    def create_publisher(self, msg_type: type, topic: str, qos_profile: Any) -> SimpleNamespace:
        def publish(message: Any) -> None:
            assert isinstance(message, msg_type), f"{topic} takes {msg_type}, got {type(message)}"
            self.published.append((topic, message))

        return SimpleNamespace(publish=publish)

    def create_subscription(
        self, msg_type: type, topic: str, callback: Callable[[Any], None], qos_profile: Any
    ) -> None:
        self.subscriptions[topic] = (msg_type, callback)

    def destroy_node(self) -> None:
        self.destroyed = True


RUNNING: list[Node] = []
PARAMETERS: dict[str, Any] = {}
QUEUE: deque[tuple[str, Any]] = deque()


def install(monkeypatch: pytest.MonkeyPatch, **parameters: Any) -> Callable[[str], type]:
    """Install the stub as ``rclpy`` and ``*_msgs.msg``, and return a function that finds message classes."""
    typesys = pytest.importorskip("rosbags.typesys")
    store = typesys.get_typestore(typesys.Stores.ROS2_HUMBLE)
    RUNNING.clear()
    QUEUE.clear()
    PARAMETERS.clear()
    PARAMETERS.update(parameters)
    classes: dict[str, type] = {}

    def find(name: str) -> type:
        return classes.setdefault(name, message_class(store, name))

    def module(name: str, **members: Any) -> None:
        made = ModuleType(name)
        made.__dict__.update(members)
        monkeypatch.setitem(sys.modules, name, made)

    def spin(node: Node) -> None:
        while QUEUE:
            topic, message = QUEUE.popleft()
            if topic in node.subscriptions:
                msg_type, callback = node.subscriptions[topic]
                assert isinstance(message, msg_type)
                callback(message)

    module("rclpy", init=lambda: None, spin=spin, try_shutdown=lambda: None)
    module("rclpy.node", Node=Node)
    module("rclpy.qos", qos_profile_sensor_data=object())
    for package in sorted({name.partition("/")[0] for name in store.fielddefs}):
        kinds = [name for name in store.fielddefs if name.startswith(f"{package}/msg/")]
        made = ModuleType(f"{package}.msg")
        made.__getattr__ = lambda kind, package=package: find(f"{package}/msg/{kind}")  # type: ignore[method-assign]
        if kinds:
            monkeypatch.setitem(sys.modules, package, ModuleType(package))
            monkeypatch.setitem(sys.modules, f"{package}.msg", made)
    return find
