#!/usr/bin/env python3
"""Writes tests/data/jinja/features.json: micro templates with what jinja2 renders from them.

Needs jinja2 (3.1.6 was used), set up as transformers does for chat templates:

    scripts/gen-jinja-cases.py > tests/data/jinja/features.json
"""
import datetime
import json
import sys

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


class Raised(Exception):
    pass


def raise_exception(message):
    raise Raised(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def strftime_now(format):
    return datetime.datetime(2026, 1, 2, 3, 4, 5).strftime(format)


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                       extensions=[Generation, "jinja2.ext.loopcontrols"])
    env.filters["tojson"] = tojson
    env.globals.update(raise_exception=raise_exception, strftime_now=strftime_now)
    return env


def case(name, template, variables):
    out = {"name": name, "template": template}
    try:
        out["expected"] = environment().from_string(template).render(**variables)
    except Raised as e:
        out.update(error=str(e), error_kind="raised")
    except Exception as e:  # every kind of failure is a case
        out.update(error=str(e), error_kind=type(e).__name__)
    return out


V = {"xs": [3, 1, 2], "words": ["b", "A", "c", "a"], "d": {"z": 1, "a": [1, 2.5, None], "é": "ü"}, "s": "Grüße, Welt! ",
     "n": -7, "f": 2.5, "t": True, "nothing": None, "empty": "",
     "people": [{"name": "Ann", "age": 31, "pet": {"kind": "cat"}}, {"name": "bob", "age": 25},
                {"name": "Cid", "age": 31, "pet": {"kind": "axolotl"}}]}

# One per line, by subject. Lines that begin with # part the subjects.
CASES = r"""
# expressions
{{ 1 + 2 * 3 - 4 / 2 }} {{ (1 + 2) * 3 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 // -2 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }}
{{ 2 ** 8 }} {{ 2 ** -1 }} {{ 2 ** 0.5 }} {{ 2 ** 3 ** 2 }} {{ -2 ** 2 }} {{ +3 }} {{ --3 }} {{ +true }} {{ -true }}
{{ n }} {{ -n }} {{ n * 2 }} {{ n / 2 }} {{ f + 1 }} {{ f * 2 }} {{ t + t }} {{ 1.0 }} {{ 10 / 5 }} {{ 1e3 }} {{ 1.5e-7 }} {{ 123456789012345680.0 }}
{{ 0.1 + 0.2 }} {{ 1e15 }} {{ 1e16 }} {{ 1e-4 }} {{ 1e-5 }} {{ 0.0001234 }} {{ 5e-324 }} {{ 1.7976931348623157e308 }} {{ 2.2250738585072014e-308 }} {{ 100.0 }} {{ -0.0 }}
{{ 1 == 1.0 }} {{ true == 1 }} {{ "1" == 1 }} {{ [1, 2] == [1, 2] }} {{ (1, 2) == [1, 2] }} {{ {"a": 1} == {"a": 1.0} }} {{ none == none }} {{ nope == nope2 }}
{{ 1 < 2 < 3 }} {{ 3 > 2 > 2 }} {{ "a" < "b" }} {{ [1, 2] < [1, 3] }} {{ (1,) < (1, 0) }} {{ 1 <= 1 != 2 }} {{ "Z" < "a" }} {{ "é" > "z" }}
{{ 1 < "a" }}
{{ none < 1 }}
{{ nope < 1 }}
{{ 1 and 0 or "x" }} {{ [] or {} }} {{ not [] }} {{ not not 1 }} {{ 0 and nope.x }} {{ 1 or nope.x }} {{ none or false }}
{{ "a" ~ 1 ~ none ~ 2.0 ~ [1, "x"] }}
{{ 1 ~ 2 + 3 }}
{{ "a" + 1 }}
{{ 1 ~ 2 * 3 }} {{ "x" ~ (1 + 2) }} {{ "a" + "b" ~ "c" == "abc" }}
{{ "ab" * 3 }} {{ 2 * "ab" }} {{ [1] * 2 }} {{ "x" * -1 }}| {{ (1, 2) * 2 }} {{ [1] + [2] }} {{ (1,) + (2,) }}
{{ [1] + (2,) }}
{{ 1 if t else 2 }} {{ 1 if nope else 2 }} [{{ 1 if false }}] {{ 1 if false else 2 if false else 3 }}
{{ (1 if false) is defined }}
{{ (1 if false).x }}
{{ 1 in [1, 2] }} {{ "z" in d }} {{ "q" not in d }} {{ "ü" in s }} {{ "" in s }} {{ 2.0 in xs }} {{ 1 in (2, 3) }} {{ "a" in "" }} {{ 1 in nope }}
{{ 1 in 5 }}
{{ [1, 2, 3][0] }} {{ xs[-1] }} [{{ xs[5] }}] {{ xs[1:] }} {{ xs[:-1] }} {{ xs[::-1] }} {{ xs[::2] }} {{ s[0] }} {{ s[3:5] }} {{ s[::-1] }} {{ s[-3] }} {{ (1, 2, 3)[1:] }} {{ xs[nothing:2] }} {{ xs[true] }}
{{ xs["0"] is defined }} {{ xs[0.0] is defined }} {{ d["z"] }} {{ d.z }} {{ d["nope"] is defined }} {{ d.a[1] }} {{ d["a"].1 }} {{ d.é }}
{{ xs[::0] }}
{{ n[1:] }}
{{ nope[1:] }}
{{ nothing.x is defined }} {{ nothing["x"] is defined }} {{ n.x is defined }} {{ s.x is defined }} {{ t.x is defined }}
{{ nothing.x.y }}
{{ nope["x"] }}
{{ nope() }}
{{ s() }}
{{ d.z() }}
{{ -"a" }}
{{ -nope }}
{{ 1 // 0 }}
{{ 1 / 0 }}
{{ 1 % 0 }}
{{ 1.0 % 0 }}
{{ (1, 2) }} {{ (1,) }} {{ () }} {{ 1, 2 }} {{ [] }} {{ {} }} {{ {"a": {"b": [none, true, "it's", 'say "x"', 'both " and \'']}} }}
{{ {1: "a", 1.0: "b", true: "c"} }} {{ {none: 1, (1, 2): 2}[(1, 2)] }}
{{ {[1]: 2} }}
{{ "tab\tnl\nquote\"back\\slash \x41\u00e9\U0001F600\101\0end" }}|{{ 'a\qb' }}|{{ ["\x00\x1b\x7f\u00a0\u200b\u00ad\ue000é😀"] }}
{{ "a" "b" 'c' }} {{ 'x' "y" ~ "z" }}
{{ 0x1F }} {{ 0b11 }} {{ 0o17 }} {{ 1_000_000 }} {{ 0 }} {{ 00 }} {{ 1_0.5_0e1_0 }} {{ 0xDEAD_BEEF }}
{{ d.items() }} {{ d.keys() }} {{ d.values() | list }} {{ range(3) }} {{ range(1, 7, 2) }} {{ range(3) | list }} {{ xs | map("string") is iterable }}
{{ d.items() | length }} {{ range(5)[2] }} {{ range(5)[1:3] }} {{ range(9)[::-2] }} {{ range(9)[::-2] | list }} {{ range(0, 9, 3)[1:] }} {{ d.keys() | first }} {{ "z" in d.keys() }} {{ d.keys()[0] is defined }}
{{ xs.append(4) }}
{{ d.update({"b": 1}) }}
{{ d.pop("z") }}
{{ xs.append is defined }} {{ s.__class__ is defined }} [{{ s.__class__ }}] {{ d.__len__ is defined }}
{{ s.__class__.__name__ }}
{{ true }} {{ True }} {{ false }} {{ None }} {{ none }} {{ nope }}|
{{ 1 is odd is even }}
{{ 1 +
   2 }} {{- 3 -}}   {{ 4 }}
{{ caller is defined }} {{ loop is defined }} {{ varargs is defined }}
{{ raise_exception("é \"no\" " ~ 1) }}
{{ dict(a=1, **{"b": 2}) }} {{ dict([("a", 1), ["b", 2]]) }} {{ dict({"x": 1}, x=2) }}
{{ "%s" | format(*[1]) }} {{ "{} {}".format(*xs[:2]) }}
# whitespace
  {% if true %}  a  {% endif %}  b
a {%- if true -%} b {%- endif -%} c
a {%+ if true %} b {%+ endif %} c
a {#- comment -#} b {# x #} c{#+ y +#} d
{{- 1 -}} {{ 2 }} {{- 3 }}
{% raw %}{{ x }}{% if %}{# #}{% endraw %} {%- raw -%}  a  {%- endraw -%} b
{% set x = 1 -%}    y
{% if true %}x{% endif %}{% if true +%} y{% endif %}
# if and for
{% if 0 %}a{% elif "" %}b{% elif [0] %}c{% else %}d{% endif %} {% if nope %}a{% else %}b{% endif %} {% if 1, %}t{% endif %}
{% for x in xs %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }} {% endfor %}
{% for x in xs %}{{ loop.previtem }}<{{ x }}<{{ loop.nextitem }};{% endfor %} {% for x in xs %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }}{% endfor %}
{% for x in [] %}x{% else %}none{% endfor %} {% for x in nope %}x{% else %}none{% endfor %} {% for x in "" %}x{% else %}none{% endfor %}
{% for x in xs if x > 1 %}{{ x }}{{ loop.length }}{% endfor %} {% for x in xs if x > 9 %}{{ x }}{% else %}none{% endfor %} {% for k, v in d.items() if k != "z" %}{{ k }}{% endfor %}
{% for x in xs if loop.index > 1 %}{{ x }}{% endfor %}
{% for k in d %}{{ k }} {% endfor %}{% for k, v in d | items %}{{ k }}={{ v }};{% endfor %}{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}
{% for a, b in xs %}{{ a }}{% endfor %}
{% for a, b in [(1, 2, 3)] %}{{ a }}{% endfor %}
{% for c in "aé😀" %}[{{ c }}]{% endfor %} {% for i in range(5, 0, -2) %}{{ i }}{% endfor %} {% for i in range(-1) %}x{% endfor %}
{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}{% endif %}{{ i }}{% endfor %} {% for i in xs %}{% for j in xs %}{% if j == 1 %}{% break %}{% endif %}{{ i }}{{ j }} {% endfor %}{% endfor %}
{% for i in [1, 2] %}{{ loop.cycle("a", "b", "c") }}{% set o = loop %}{% for j in [1, 2] %}{{ o.index }}{{ loop.index }}{{ loop.depth0 }}{% endfor %}{% endfor %} {% for x in [1, 1, 2] %}{{ loop.changed(x) }}{% endfor %}
{% for x in [{"n": 1, "c": [{"n": 2, "c": []}]}] recursive %}<{{ x.n }}@{{ loop.depth }}{{ loop(x.c) }}>{% endfor %}
{% for x in xs %}{{ loop(xs) }}{% endfor %}
{% set x = 1 %}{% for i in xs %}{% set x = x + i %}{{ x }} {% endfor %}{{ x }} {% for x in [9] %}{{ x }}{% endfor %}{{ x }}
{% for i in xs %}{% if i == 1 %}{% set y = i %}{% endif %}[{{ y }}]{% endfor %}
{% set xs = 5 %}{{ xs }} {% if true %}{% set q = 1 %}{% endif %}{{ q }} {% for i in [1] %}{% set w = 1 %}{% endfor %}[{{ w }}]
{% set ns = namespace(a=1, b=[]) %}{% for i in xs %}{% set ns.a = ns.a + i %}{% set ns.b = ns.b + [i] %}{% endfor %}{{ ns.a }} {{ ns.b }} {{ ns.c is defined }} {{ ns["a"] is defined }} {{ ns }}
{% set d.z = 2 %}
{% set nope.z = 2 %}
{% set a, b = 1, 2 %}{{ a }}{{ b }} {% set (a, b) = (b, a) %}{{ a }}{{ b }} {% set c = 1, %}{{ c }} {% set a, b = "xy" %}{{ a }}{{ b }}
{% set a, b = 1 %}
{% set x %}a {{ 1 }} <b>{% endset %}[{{ x }}] {{ x | length }} {% set y | upper | replace("A", "4") %}banana{% endset %}{{ y }}
{% with a = 1, b = 2 %}{{ a + b }}{% set c = 3 %}{{ c }}{% endwith %}[{{ a }}{{ c }}] {% set a = 5 %}{% with a = 1, b = a %}{{ b }}{% endwith %} {% with %}{% set z = 1 %}{% endwith %}{{ z }}
{% filter upper %}a{{ s }}{% endfilter %} {% filter replace("a", "b") | trim %}  aa  {% endfilter %}
{% block x %}in{{ n }}{% set q = 1 %}{% endblock %}[{{ q }}]{% for i in [1] %}{% block y %}{{ i }}{% endblock %}{% block z scoped %}{{ i }}{% endblock %}{% endfor %}
{% generation %}a{{ n }}{% set q = 1 %}{% endgeneration %}[{{ q }}]
{% print 1 + 1 %}{% print 1, 2 %}
{% if true %}
{% for x in
{% endif %}
{% endfor %}
{% break %}
{% wibble %}
{% include "x" %}
{% import "x" as y %}
{% extends "x" %}
{{ 1 | wibble }}
{% if false %}{{ 1 | wibble }}{% endif %}ok
{% if false %}{% for x in xs %}{{ x | wibble }}{% endfor %}{% endif %}ok
{{ 1 if true else (2 | wibble) }}
{{ 1 is wibble }}
# macros
{% macro m(a, b=2, c=a) %}{{ a }}{{ b }}{{ c }};{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(1, c=4) }}{{ m(b=1, a=2) }}{{ m() }}{{ m }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(z=2) }}
{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, x=3) }}
{% macro m(x) %}<{{ caller(x) }}>{% endmacro %}{% call(y) m(1) %}{{ y }}{{ n }}{% endcall %} {% macro k() %}{{ caller() }}{% endmacro %}{% call k() %}c{% endcall %}
{% macro k() %}x{% endmacro %}{% call k() %}c{% endcall %}
{% macro k() %}{{ caller() }}{% endmacro %}{{ k() }}
{% macro f(n) %}{% if n > 0 %}{{ n }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(4) }} {{ f(2) | length }} {{ f(2) ~ "!" }}
{% set v = 1 %}{% macro m() %}{{ v }}{% set v = 9 %}{{ v }}{% endmacro %}{{ m() }}{% set v = 2 %}{{ m() }}{{ v }}
{% macro m() %}{{ loop is defined }}{{ i is defined }}{% endmacro %}{% for i in [1] %}{{ m() }}{% endfor %} {% for i in [1, 2] %}{% macro q() %}{{ i }}{% endmacro %}{{ q() }}{% endfor %}
{% macro outer() %}{% macro inner() %}i{{ n }}{% endmacro %}[{{ inner() }}]{% endmacro %}{{ outer() }} {{ inner is defined }} {{ outer.name }}
{% macro m(a, b) %}{{ a is defined }}{{ b is defined }}{{ b }}{% endmacro %}{{ m(1) }} {{ m(*[1, 2]) }} {{ m(**{"b": 3}) }}
{% set j = joiner("|") %}{% for x in xs %}{{ j() }}{{ x }}{% endfor %} {% set c = cycler(1, 2) %}{{ c.next() }}{{ c.current }}{{ c.next() }}{{ c.next() }}{% set _ = c.reset() %}{{ c.next() }}
# string methods
{{ s.upper() }} {{ s.lower() }} {{ s.title() }} {{ s.capitalize() }} {{ s.swapcase() }} {{ "ǆ ß ŉ ﬁ İ".upper() }} {{ "İI".lower() }} {{ "ǆx ßy".title() }} {{ "it's o'neil 3rd".title() }}
[{{ s.strip() }}] [{{ "xxaxx".strip("x") }}] [{{ "abcab".lstrip("ab") }}] [{{ "abcab".rstrip("ba") }}] [{{ "\u00a0\u2003a\u3000".strip() }}] [{{ "ééaé".strip("é") }}]
{{ "a,b,,c".split(",") }} {{ "a,b,c".split(",", 1) }} {{ "a,b,c".rsplit(",", 1) }} {{ "  a  b ".split() }} {{ " a b  c ".split(none, 1) }} {{ " a b  c ".rsplit(none, 1) }} {{ "".split() }} {{ "".split("x") }} {{ "a--b".split("--") }} {{ "aaa".split("aa") }} {{ "aaa".rsplit("aa") }} {{ "a b".split(maxsplit=0) }}
{{ "a".split("") }}
{{ "a\nb\r\nc\rd\x0be\u2028f".splitlines() }} {{ "a\nb\n".splitlines(true) }} {{ "".splitlines() }} {{ "\n".splitlines() }}
{{ "abc".startswith("a") }} {{ "abc".startswith(("x", "ab")) }} {{ "abc".endswith("c") }} {{ "abc".endswith(("x",)) }} {{ "abc".startswith("b", 1) }} {{ "abc".startswith("") }}
{{ "abc".startswith(1) }}
{{ "abcabc".find("c") }} {{ "abcabc".find("c", 3) }} {{ "abc".find("x") }} {{ "abcabc".rfind("c") }} {{ "éa".find("a") }} {{ "abcabc".count("bc") }} {{ "aaa".count("aa") }} {{ "abc".count("") }} {{ "abc".index("b") }} {{ "abc".find("") }} {{ "abc".rfind("") }}
{{ "abc".index("x") }}
{{ "aXbX".replace("X", "-") }} {{ "aaa".replace("a", "b", 2) }} {{ "ab".replace("", "-") }} {{ "é".replace("é", "") }}| {{ "ab".replace("", "-", 2) }}
{{ "-".join(["a", "b"]) }} {{ "".join("abc") }} {{ ", ".join(d) }}
{{ "-".join([1]) }}
{{ "a=b=c".partition("=") }} {{ "a=b=c".rpartition("=") }} {{ "abc".partition("x") }} {{ "abc".rpartition("x") }}
{{ "7".zfill(3) }} {{ "-7".zfill(4) }} {{ "a".center(4, "*") }} {{ "ab".center(5, "*") }} {{ "a".center(4) }}| {{ "é".ljust(3, ".") }} {{ "a".rjust(3, ".") }} {{ "abc".center(2) }}
{{ "abc".removeprefix("a") }} {{ "abc".removesuffix("c") }} {{ "abc".removeprefix("x") }} {{ "a\tb".expandtabs(4) }} {{ "ß".casefold() }}
{{ "12".isdigit() }} {{ "²".isdigit() }} {{ "²".isdecimal() }} {{ "½".isnumeric() }} {{ "aé".isalpha() }} {{ "a1".isalnum() }} {{ " \t".isspace() }} {{ "AB1".isupper() }} {{ "ab1".islower() }} {{ "1".islower() }} {{ "".isalpha() }} {{ "abc".isascii() }} {{ "".isascii() }}
{{ "{} {1} {x}".format(1, 2, x=3) }}
{{ "{} {} {x}".format(1, 2, x=3) }} {{ "{0}{1}{0}".format("a", "b") }} {{ "{:>5}|{:<5}|{:^5}|{:*^5}".format(1, 2, "a", "b") }} {{ "{:05d} {:+d} {:x} {:#x} {:b} {:,}".format(42, 42, 255, 255, 5, 1234567) }} {{ "{:.2f} {:8.3f} {:e} {:g} {:%}".format(1.005, 3.14159, 12345.678, 0.0001, 0.25) }} {{ "{!r} {!s}".format("a", "b") }} {{ "{a[0]} {a[k]}".format(a={0: 1, "k": 2}) }} {{ "{{}}".format() }}
{{ "{}".format() }}
{{ "%s %d %5d|%-5d|%05d %x %X %o %c %%" % ("a", 3.7, 42, 42, 42, 255, 255, 8, "z") }} {{ "%.2f %e %g %10.3f" % (2.675, 12345.678, 1e-5, 3.14159) }} {{ "%r %s" % ("a", none) }} {{ "%(a)s-%(b)03d" % {"a": 1, "b": 2} }} {{ "%+d % d %#x" % (5, 5, 255) }} {{ "%5s|%-5s|%.2s" % ("ab", "ab", "abc") }} {{ "%s" % [1, 2] }} {{ "%*d" % (5, 42) }}
{{ "%d" % "x" }}
{{ "%s %s" % "a" }}
{{ "%s" % (1, 2) }}
# filters
{{ n | abs }} {{ -2.5 | abs }} {{ "a" | capitalize }} {{ "hELLO" | capitalize }} {{ "a" | center(5) }}| {{ xs | count }} {{ nope | default("d") }} {{ "" | default("d") }} {{ "" | default("d", true) }} {{ nothing | default("d") }} {{ nope | d }}| {{ nope | default(boolean=true, default_value=1) }}
{{ d | dictsort }} {{ {"b": 1, "A": 2, "a": 0} | dictsort }} {{ {"b": 1, "A": 2} | dictsort(true) }} {{ {"b": 1, "a": 2} | dictsort(by="value") }} {{ {"b": 1, "a": 2} | dictsort(reverse=true) }}
{{ "<a href='x'>&\"" | escape }} {{ "<" | e ~ ">" }} {{ ("<" | e) + "<" }} {{ "<" | safe }} {{ ("<" | safe) + "&" }} {{ "&" + ("<" | safe) }} {{ ("<" | safe) ~ "&" }} {{ "<" | safe | forceescape }} {{ ("<" | safe) is escaped }} {{ ["<" | safe] }} {{ "<" | safe | upper }}
{{ xs | first }} {{ xs | last }} {{ s | first }} [{{ [] | first }}] {{ d | first }} {{ "é" | last }} {{ ([] | first) is defined }}
{{ "3.7" | float }} {{ "x" | float }} {{ "x" | float(1) }} {{ " 1e3 " | float }} {{ "inf" | float }} {{ "3.9" | int }} {{ "x" | int }} {{ "x" | int(5) }} {{ "0x1F" | int(0, 16) }} {{ "11" | int(base=2) }} {{ 3.9 | int }} {{ -3.9 | int }} {{ true | int }} {{ "1_000" | int }} {{ none | int }} {{ "0b11" | int(0, 0) }} {{ " 42 " | int }}
{{ "%s-%s" | format(1, 2) }} {{ "%(a)s" | format(a=1) }}
{{ people | groupby("age") | list | length }} {% for g in people | groupby("age") %}{{ g.grouper }}:{{ g.list | map(attribute="name") | join(",") }} {% endfor %}{% for k, v in people | groupby("pet.kind", default="none") %}{{ k }}{{ v | length }} {% endfor %}
{{ "a\nb\n\nc" | indent }} {{ "a\nb" | indent(2, true) }} {{ "a\n\nb" | indent(2, blank=true) }} {{ "a\nb" | indent(">") }} {{ "a\n" | indent }}| {{ "" | indent(2, true) }}|
{{ xs | join }} {{ xs | join("-") }} {{ people | join(", ", attribute="name") }} {{ "abc" | join(".") }} {{ [none, 1.0, true] | join("|") }} {{ nope | join }}|
{{ d | items | list }} {{ nope | items | list }} {{ xs | length }} {{ s | length }} {{ d | length }} {{ nope | length }} {{ range(4) | length }}
{{ 5 | length }}
{{ xs | map("string") | map("length") | length }}
{{ "abc" | list }} {{ d | list }} {{ (1, 2) | list }} {{ "ABC" | lower }} {{ 5 | upper }} {{ none | lower }}
{{ people | map(attribute="name") | list }} {{ people | map(attribute="pet.kind", default="-") | list }} {{ people | map(attribute="pet", default="?") | list }} {{ words | map("upper") | list }} {{ ["a-b"] | map("replace", "-", "+") | list }} {{ [[1, 2]] | map(attribute=0) | list }} {{ [[1, 2]] | map("first") | list }}
{{ words | min }} {{ words | max }} {{ xs | min }} {{ xs | max }} {{ words | max(case_sensitive=true) }} {{ people | min(attribute="age") }} [{{ [] | max }}] {{ words | min(true) }}
{{ xs | select("odd") | list }} {{ xs | reject("odd") | list }} {{ [0, 1, "", "a"] | select | list }} {{ [0, 1, "", "a"] | reject | list }} {{ xs | select(">", 1) | list }} {{ xs | select("in", [1, 2]) | list }} {{ people | selectattr("pet") | map(attribute="name") | list }} {{ people | rejectattr("pet") | map(attribute="name") | list }} {{ people | selectattr("age", "gt", 30) | list | length }} {{ people[::2] | selectattr("pet.kind", "equalto", "cat") | list | length }} {{ people | selectattr("pet", "defined") | list | length }}
{{ xs | reverse | list }} {{ s | reverse }} {{ 2.5 | round }} {{ 3.5 | round }} {{ 2.675 | round(2) }} {{ 1234.5 | round(-2) }} {{ 2.1 | round(method="ceil") }} {{ -2.1 | round(0, "floor") }} {{ 5 | round }} {{ 2.55 | round(1, "floor") }}
{{ [1, 2, 3, 4, 5] | batch(2) | list }} {{ [1, 2, 3] | batch(2, 0) | list }} {{ [1, 2, 3, 4, 5] | slice(3) | list }} {{ [1, 2, 3, 4, 5] | slice(3, "x") | list }} {{ [] | batch(2) | list }} {{ [1] | slice(3) | list }}
{{ words | sort }} {{ words | sort(case_sensitive=true) }} {{ xs | sort(reverse=true) }} {{ people | sort(attribute="age") | map(attribute="name") | list }} {{ people | sort(attribute="age,name", reverse=true) | map(attribute="name") | list }} {{ "cab" | sort }} {{ [(2, "a"), (1, "b")] | sort }} {{ d | sort }}
{{ [1, "a"] | sort }}
{{ 1 | string }} {{ 1.0 | string }} {{ none | string }} {{ [1] | string | length }} {{ xs | sum }} {{ [] | sum }} {{ people | sum(attribute="age") }} {{ xs | sum(start=10) }} {{ [0.1, 0.2] | sum }} {{ [[1], [2]] | sum(start=[]) }}
{{ ["a"] | sum }}
{{ "foo bar-baz (qux) o'neil" | title }} {{ "[x {y <z" | title }} [{{ "  a " | trim }}] {{ "xax" | trim("x") }} {{ 5 | trim }}
{{ "foo bar baz qux" | truncate(9) }} {{ "foo bar baz qux" | truncate(9, leeway=0) }} {{ "foo bar baz qux" | truncate(9, true, leeway=0) }} {{ "foobarbazqux" | truncate(5, false, "..", 0) }} {{ "short" | truncate(9) }}
{{ words | unique | list }} {{ ["a", "A", "b"] | unique(true) | list }} {{ people | unique(attribute="age") | map(attribute="name") | list }} {{ [1, 1.0, true, 2] | unique | list }}
{{ "a b&c/d?é" | urlencode }} {{ {"a": "b c", "d": 1} | urlencode }} {{ [("a", "/")] | urlencode }} {{ 5 | urlencode }}
{{ "one two,three_4 é" | wordcount }} {{ "the quick brown fox jumps" | wordwrap(10) }} {{ "a-very-long-hyphenated word" | wordwrap(8) }} {{ "abcdefghijkl mn" | wordwrap(5) }} {{ "abcdefghijkl mn" | wordwrap(5, false) }} {{ "a b\n\nc d" | wordwrap(2, wrapstring="|") }}
{{ 1 | filesizeformat }} {{ 999 | filesizeformat }} {{ 1500 | filesizeformat }} {{ 1234567 | filesizeformat }} {{ 1234567 | filesizeformat(true) }} {{ "2000" | filesizeformat }}
{{ d | attr("keys") is defined }} {{ d | attr("z") is defined }} {{ s | attr("upper") is callable }}
{{ d | tojson }} {{ d | tojson(indent=2) }} {{ d | tojson(ensure_ascii=true) }} {{ {"b": 1, "a": [1, {"z": 2, "y": 3}]} | tojson(sort_keys=true) }} {{ [1, {"a": 2}] | tojson(separators=(",", ":")) }} {{ [] | tojson(indent=2) }} {{ {} | tojson(indent=2) }} {{ [[], {}] | tojson(indent=1) }} {{ (1, 2) | tojson }} {{ [1] | tojson(indent="\t") }} {{ [1, [2]] | tojson(indent=0) }}
{{ "\"\\/\b\f\n\r\t\x00\x1f\x7f\u2028é😀<>&'" | tojson }} {{ "é😀\x7f" | tojson(ensure_ascii=true) }} {{ 1e999 | tojson }} {{ -1e999 | tojson }} {{ 1.0 | tojson }} {{ 1e16 | tojson }} {{ {1: 2, true: 3, none: 4, 1.5: 5} | tojson }}
{{ nope | tojson }}
{{ people | map(attribute="pet.kind") | list }}
{{ people | selectattr("pet.kind", "equalto", "cat") | list }}
{{ {(1, 2): 3} | tojson }}
{{ range(3) | tojson }}
{{ "a" | indent(width=1, first=true, bad=2) }}
{{ "a" | replace }}
{{ xs | map | list }}
{{ xs | map("nope") | list }}
# tests
{{ n is defined }} {{ nope is undefined }} {{ nope is not defined }} {{ n is number }} {{ t is number }} {{ t is boolean }} {{ 1 is integer }} {{ true is integer }} {{ 1.0 is float }} {{ "a" is string }} {{ d is mapping }} {{ xs is sequence }} {{ s is sequence }} {{ d is sequence }} {{ nope is sequence }} {{ nope is iterable }} {{ 5 is iterable }} {{ nothing is none }} {{ nope is none }} {{ range is callable }} {{ nope is callable }}
{{ 2 is even }} {{ 3 is odd }} {{ 9 is divisibleby 3 }} {{ 9 is divisibleby(2) }} {{ 1 is eq 1 }} {{ 1 is ne 2 }} {{ 1 is lt 2 }} {{ 2 is ge 2 }} {{ 1 is sameas 1 }} {{ true is sameas true }} {{ 1 is sameas true }} {{ "a" is in "abc" }} {{ 1 is in [1] }} {{ "abc" is lower }} {{ "ABC" is upper }} {{ "upper" is filter }} {{ "odd" is test }} {{ "x" is filter }} {{ true is true }} {{ 1 is true }} {{ 0 is false }} {{ (1 is odd) is true }}
{{ "a" is odd }}
{{ nope is odd }}
{{ x is defined and x.y }} {{ not n is none }} {{ n is not none and n < 0 }} {{ d.z is defined }} {{ d.q is defined }}
# clock
{{ strftime_now("%Y-%m-%d %H:%M:%S %j %U %W %w %u %a %A %b %B %y %I %p %e %k %l %C %G %V %% %F %T %D %R %c %x %X %-d %-m %_d %^a %0e %n %h") }}
# markup
{{ "<b>a</b> &amp; <i class='x'>b</i>\n\t c " | striptags }}|{{ "a < b" | striptags }}|{{ "<>x<" | striptags }}|{{ nothing | striptags }}|{{ nope | striptags }}|{{ 7 | striptags }}
{{ "a<!-- x > y -->b" | striptags }}|{{ "<<!---->!--x-->y" | striptags }}|{{ "<!-->z" | striptags }}|{{ "<!--->z" | striptags }}|{{ "<!-- open <b> x" | striptags }}|{{ "<!-- a --" | striptags }}|{{ "<!--a--><!--b-->c" | striptags }}
{{ "&lt;b&gt;&quot;&#39;&nbsp;&notin;&notit;&notx;&ampx &amp &; &x; && &CounterClockwiseContourIntegral; &NotEqualTilde;" | striptags }}
{{ "&#65;&#x42;&#X43 &#128;&#x9f;&#0;&#xD800;&#x110000;&#99999999999999999999;&#1;x&#11;&#x7f;&#xfdd0;&#xffff;&#x1F600;&#;&#x;&#" | striptags }}|{{ "&#13;" | striptags | length }}|{{ "&#12;&#10;&#9;" | striptags | length }}
{{ "&aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa;&gtaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa;&gé;&ltü;&gt\x00\x00notin;-" | striptags }}|{{ ("<b>&lt;" | safe) | striptags }}|{{ ["<b>", 1] | striptags }}
{{ {"class": "a b", "id": 7, "n": none, "u": nope, "q": 'x"<y>', "é&": true, "list": [1, "<"]} | xmlattr }}|{{ {"a": 1} | xmlattr(false) }}|{{ {} | xmlattr }}|{{ {"a": none} | xmlattr }}|{{ {"s": "<b>" | safe} | xmlattr }}
{{ {"a b": 1} | xmlattr }}
{{ {"a/b": 1} | xmlattr }}
{{ {"a=b": 1} | xmlattr }}
{{ {"a>": 1} | xmlattr }}
{{ {"a\x0b": 1} | xmlattr }}
{{ {"a\x00\xa0b": 1} | xmlattr }}
{{ {1: 2} | xmlattr }}
{{ [1] | xmlattr }}
{{ nope | xmlattr }}
"""


def main():
    out = []
    subject, number = "", 0
    lines = CASES.strip("\n").split("\n")
    i = 0
    while i < len(lines):
        line = lines[i]
        i += 1
        if line.startswith("# "):
            subject, number = line[2:], 0
            continue
        while line.count("{{") > line.count("}}") and "endraw" not in line and i < len(lines) and lines[i].startswith("  "):
            line += "\n" + lines[i]
            i += 1
        number += 1
        out.append(case(f"{subject} {number}", line, V))
    for name, template in {
        "lines": "a\n{% if true %}\n  b\n  {% endif %}\n{# c #}\n\td\n   {{ 1 }}\n{%- for x in xs %}\n  {{ x }}\n{%- endfor %}\n\n",
        "crlf": "a\r\n{% if true %}\r\nb\r{% endif %}c\r\n",
        "two newlines": "a\n\n", "only newline": "\n", "nothing": "",
        "raw lines": "x\n  {% raw %}\n {{ y }}\n  {% endraw %}\nz",
        "strip before": "a  \n\n  {%- if true %} b{% endif %}\n", "plus": "  {%+ if true +%}\n a {% endif %}",
        "comment lines": "a\n  {# c\n d #}\nb {# e #}\nc",
    }.items():
        out.append(case("layout " + name, template, V))
    json.dump({"variables": V, "cases": out}, sys.stdout, ensure_ascii=False, indent=0)
    print()


if __name__ == "__main__":
    main()
