"""The forms of cron entries: overrides of what code declares, and schedules made at run time."""

from __future__ import annotations

import inspect
import json
import sys
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.forms.fields import InvalidJSONInput
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from django_pgjobs.definition.policy import JobPolicy
from django_pgjobs.definition.registry import registry
from django_pgjobs.exceptions import PgJobsError
from django_pgjobs.models import CronEntry
from django_pgjobs.schedules import BoundSchedule, Reading
from django_pgjobs.serialization.escapes import visible
from django_pgjobs.serialization.payload import decode_result, encode_result
from django_pgjobs.steering.crons import OVERRIDES, check_overrides

NOTHING: object = object()
"""Stands for an argument that the user left empty: JSON has a null of its own."""


class ArgumentsField(forms.JSONField):
    """JSON text; values that Python's parser gives up on are simply invalid."""

    def to_python(self, value: object) -> Any:
        """Parse it."""
        try:
            return super().to_python(value)
        except (ValueError, RecursionError):
            raise ValidationError(self.error_messages["invalid"], code="invalid", params={"value": value}) from None

    def prepare_value(self, value: object) -> Any:
        """Show an empty field if nothing overrides the arguments."""
        return "" if value is None else super().prepare_value(value)

    def bound_data(self, data: object, initial: object) -> object:
        """Show the input again, unchanged."""
        return initial if self.disabled else InvalidJSONInput(data or "")


class ArgumentField(ArgumentsField):
    """One argument as JSON. ``null``, ``""``, ``[]`` and ``{}`` are values; only an empty field is none."""

    def to_python(self, value: Any) -> Any:
        """Parse it; return ``NOTHING`` for an empty field."""
        return super().to_python(value) if value and value.strip() else NOTHING

    def validate(self, value: object) -> None:
        """Refuse an empty field where the job needs the argument."""
        if self.required and value is NOTHING:
            raise ValidationError(self.error_messages["required"], code="required")


class OverrideForm(forms.ModelForm):  # type: ignore[type-arg]
    """Values that override the code's; an empty field keeps the declared one."""

    class Meta:
        model = CronEntry
        fields = OVERRIDES
        field_classes = {"payload": ArgumentsField}
        widgets = {
            "expression": forms.TextInput(attrs={"size": 40}),
            "zone": forms.TextInput(attrs={"size": 40}),
            "payload": forms.Textarea(attrs={"rows": 4, "cols": 80}),
        }
        help_texts = {
            "expression": _(
                "Five fields, or six with seconds last, or an interval: every 45 minutes, "
                "every 2 weeks from 2026-01-05 07:00. Leave empty to use the declared value."
            ),
            "zone": _("An IANA name such as Europe/Paris. Leave empty to use the declared value."),
            "payload": _('For example {"args": [...], "kwargs": {...}}. Leave empty to use the declared value.'),
        }

    def clean(self) -> dict[str, object]:
        """Check the overrides against the job definition, if this process has it."""
        values = super().clean() or {}
        given = {name: values[name] or None for name in OVERRIDES if name in values}
        try:
            return {**values, **check_overrides(self.instance.job_name, given)}
        except ValidationError as error:
            self.add_error(None, error)
            return values

    def _post_clean(self) -> None:
        # Django would copy the input into the entry; beside an error, it would look like the current value.
        pass


def jobs_to_schedule() -> list[JobPolicy]:
    """Return the jobs that code exposes to people, by name."""
    return [definition for definition in registry.definitions() if definition.schedulable]


SIMPLE: dict[str, type[forms.Field]] = {"int": forms.IntegerField, "float": forms.FloatField, "str": forms.CharField}
"""The annotations of arguments that a plain field can take; the others are JSON."""

ARGUMENT = "argument_"
"""Prefix of the names of argument fields."""


def argument_field(parameter: inspect.Parameter, value: object = NOTHING) -> forms.Field:
    """Return the field for an argument, which shows its present ``value``; an empty one is left out of the call.

    A plain field would change some values by itself, such as a text with line breaks. Those are shown as JSON.
    """
    required = parameter.default is parameter.empty and parameter.kind not in (
        parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD,
    )  # fmt: skip
    annotation = parameter.annotation
    kind = SIMPLE.get(annotation if isinstance(annotation, str) else getattr(annotation, "__name__", ""))
    many = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    if kind is not None and not many and _keeps(kind, value):
        return kind(label=parameter.name, required=required)
    example = '"text", 7, [1, 2]'
    if parameter.kind is parameter.VAR_POSITIONAL:
        example = "[1, 2]"
    elif parameter.kind is parameter.VAR_KEYWORD:
        example = '{"name": "value"}'
    help_text = _("JSON, such as %(example)s") % {"example": example}
    widget = forms.Textarea(attrs={"rows": 2, "cols": 60})
    return ArgumentField(label=parameter.name, required=required, help_text=help_text, widget=widget)


def _keeps(kind: type[forms.Field], value: object) -> bool:
    """Return whether a plain field gives back exactly the value that it shows."""
    if value is NOTHING:
        return True
    if kind is forms.CharField:
        return type(value) is str and value != "" and value == value.strip() and value.isprintable()
    return type(value) is (int if kind is forms.IntegerField else float)


class ScheduleForm(forms.Form):
    """A schedule for a job that code exposes: when, with which arguments, and how its jobs run."""

    name = forms.CharField(label=_("Name"), max_length=200, help_text=_("For example report:acme."))
    expression = forms.CharField(
        label=_("When"),
        max_length=200,
        help_text=_("0 7 * * 1 for Mondays at 07:00, or: every 45 minutes, every 2 weeks from 2026-01-05 07:00"),
    )
    tz = forms.CharField(label=_("Time zone"), help_text=_("An IANA name such as Europe/Paris."))
    start = forms.DateTimeField(label=_("Start"), required=False, help_text=_("No fire before it."))
    end = forms.DateTimeField(label=_("End"), required=False, help_text=_("No fire after it."))
    max_fires = forms.IntegerField(label=_("At most so many fires"), required=False, min_value=1)
    misfire = forms.ChoiceField(
        label=_("Missed fires"),
        choices=[("once", _("make the latest")), ("skip", _("skip them")), ("all", _("make the last ones"))],
    )
    misfire_limit = forms.IntegerField(label=_("How many of the last ones"), required=False, min_value=1)
    overlap = forms.ChoiceField(
        label=_("While a job of it is unfinished"),
        choices=[
            ("allow", _("start another")),
            ("skip", _("skip the fire")),
            ("after_completion", _("wait for its end")),
        ],
    )
    queue = forms.CharField(label=_("Queue"), required=False)
    priority = forms.IntegerField(label=_("Priority"), required=False)
    enabled = forms.BooleanField(label=_("Enabled"), required=False, initial=True)
    reason = forms.CharField(label=_("Reason of the change"), required=False, max_length=500)

    def __init__(self, data: Any, *, reading: Reading, new: bool, by: object, reveal: bool) -> None:
        self.reading, self.new, self.by = reading, new, by
        self.bound: BoundSchedule[...] | None = None
        """The schedule that the input describes, once it is valid."""
        super().__init__(data, initial={} if new else _initial(reading))
        self.parameters = list(reading.definition._signature.parameters.values()) if reveal else []
        present = {} if new else _bound(reading)
        own = {
            f"{ARGUMENT}{parameter.name}": argument_field(parameter, present.get(parameter.name, NOTHING))
            for parameter in self.parameters
        }
        if not new:
            del self.fields["name"]
        before = [name for name in self.fields if name in ("name", "expression", "tz")]
        self.fields.update(own)
        self.order_fields([*before, *own])

    def clean_name(self) -> str:
        """Refuse a name that is taken."""
        name = str(self.cleaned_data["name"])
        if CronEntry.objects.using(self.reading.options.get("database")).filter(pk=name).exists():
            raise ValidationError(_("There is a cron entry of this name: choose another one, or change that."))
        return name

    def clean(self) -> dict[str, object]:
        """Check the whole as the call in code would."""
        values = super().clean() or {}
        if not self.errors:
            try:
                self.reading = self._read(values)
                self.bound = self.reading.checked()
            except (PgJobsError, TypeError, ValueError) as error:
                self.add_error(None, visible(error))
        return values

    def _read(self, values: dict[str, object]) -> Reading:
        # Fields show whole seconds: an unchanged instant stays as it is.
        bounds = [name for name in ("start", "end") if self.new or name in self.changed_data]
        own = ["name", *bounds] if self.new else bounds
        names = (*own, "tz", "max_fires", "misfire", "overlap", "enabled", "reason")
        timing = {name: values[name] for name in names} | {"by": self.by}
        timing["misfire_limit"] = values["misfire_limit"] if values["misfire"] == "all" else None
        given = {"queue": values["queue"] or None, "priority": values["priority"]}
        options = {name: value for name, value in given.items() if value is not None}
        args, kwargs = self._arguments(values) if self.parameters else (self.reading.args, self.reading.kwargs)
        return self.reading.changed(timing, options, expression=values["expression"], args=args, kwargs=kwargs)

    def _arguments(self, values: dict[str, object]) -> tuple[list[object], dict[str, object]]:
        args: list[object] = []
        kwargs: dict[str, Any] = {}
        given = {p: value for p in self.parameters if (value := self._value(p, values)) is not NOTHING}
        # Python passes what comes before further positional arguments by position, too.
        by_position = any(value and p.kind is p.VAR_POSITIONAL for p, value in given.items())
        empty = ""
        for parameter in self.parameters:
            positional = parameter.kind is parameter.POSITIONAL_ONLY or (
                by_position and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
            )
            if parameter not in given:
                empty = empty or (parameter.name if positional else "")
                continue
            value = given[parameter]
            if empty and (positional or (value and parameter.kind is parameter.VAR_POSITIONAL)):
                raise TypeError(f"{empty} is empty, but {parameter.name} comes behind it by position: fill it in")
            if parameter.kind is parameter.VAR_POSITIONAL:
                args += value
            elif parameter.kind is parameter.VAR_KEYWORD:
                if repeated := sorted({p.name for p in self.parameters} & value.keys()):
                    raise TypeError(f"{parameter.name} repeats {', '.join(repeated)}")
                kwargs.update(value)
            elif positional:
                args.append(value)
            else:
                kwargs[parameter.name] = value
        return args, kwargs

    def _value(self, parameter: inspect.Parameter, values: dict[str, object]) -> Any:
        name = f"{ARGUMENT}{parameter.name}"
        value = values[name]
        if not isinstance(self.fields[name], ArgumentField):
            return NOTHING if value in (None, "") else value
        if value is NOTHING:
            return NOTHING
        value = decode_result(json.dumps(value))
        if parameter.kind is parameter.VAR_POSITIONAL and not isinstance(value, list):
            raise TypeError(f"{parameter.name} must be a JSON list")
        if parameter.kind is parameter.VAR_KEYWORD and not isinstance(value, dict):
            raise TypeError(f"{parameter.name} must be a JSON object")
        return value


def _initial(reading: Reading) -> dict[str, object]:
    timing = reading.timing
    shown: dict[str, object] = {
        "expression": reading.expression,
        "queue": reading.options["queue"],
        "priority": reading.options["priority"],
        **{name: timing.get(name) for name in ("tz", "max_fires", "misfire", "misfire_limit", "overlap", "enabled")},
        **{name: _local(timing.get(name)) for name in ("start", "end")},
    }
    for name, value in _bound(reading).items():
        kind = argument_field(reading.definition._signature.parameters[name], value)
        shown[f"{ARGUMENT}{name}"] = _json(value) if isinstance(kind, ArgumentField) else value
    return shown


def _bound(reading: Reading) -> dict[str, object]:
    """Return the arguments by the names of their parameters; none if they do not fit the job any more."""
    try:
        return reading.definition._signature.bind_partial(*reading.args, **reading.kwargs).arguments
    except TypeError:
        return {}


def _json(value: object) -> object:
    return InvalidJSONInput(encode_result(list(value) if isinstance(value, tuple) else value, sys.maxsize))


def _local(instant: Any) -> object:
    return timezone.localtime(instant) if instant is not None and timezone.is_aware(instant) else instant
