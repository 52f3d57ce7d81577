"""Draws line and bar charts, one self-contained SVG each, with the standard library alone."""

import collections
import math
from xml.sax.saxutils import escape

# A rectangle of the drawing and the scaled values at its edges: x from `x_begin` to `x_end`, y from
# `begin` at its bottom to `end` at its top.
Panel = collections.namedtuple(
    "Panel", "left right top bottom x_begin x_end begin end x_scale scale",
    defaults=(float, float))
Style = collections.namedtuple("Style", "colour width dash", defaults=(1.6, ""))

LEGEND_ROW = 22
DOT = 3.5


def nice_ticks(low, high, count=6):
    """Returns round values that enclose `low` and `high`."""
    width = max(high - low, 1e-9) / count
    magnitude = 10 ** math.floor(math.log10(width))
    step = next(m * magnitude for m in (1, 2, 5, 10) if m * magnitude >= width * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [i * step for i in range(first, last + 1)]


def place_x(panel, value):
    part = (panel.x_scale(value) - panel.x_begin) / (panel.x_end - panel.x_begin)
    return panel.left + (panel.right - panel.left) * part


def place_y(panel, value):
    part = (panel.scale(value) - panel.begin) / (panel.end - panel.begin)
    return panel.bottom - (panel.bottom - panel.top) * part


class Chart:
    def __init__(self, width, height):
        self.width, self.height = width, height
        self.parts = []

    def text(self, x, y, content, anchor="start", extra=""):
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{extra}>'
                          f"{escape(content)}</text>")

    def line(self, x1, y1, x2, y2, style):
        self.parts.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
                          f'stroke="{style.colour}" stroke-width="{style.width}"'
                          f"{_dashes(style)}/>")

    def axes(self, panel, x_ticks, y_ticks, format_x, format_y, titles):
        """Draws both axes. `titles`: above the panel, and below the right end of the x axis."""
        for tick in y_ticks:
            y = place_y(panel, tick)
            self.line(panel.left, y, panel.right, y,
                      Style("#999999" if tick == 0 else "#e4e4e4", 1))
            self.text(panel.left - 8, y + 4, format_y(tick), "end")
        black = Style("#333333", 1)
        for tick in x_ticks:
            x = place_x(panel, tick)
            self.line(x, panel.bottom, x, panel.bottom + 5, black)
            self.text(x, panel.bottom + 20, format_x(tick), "middle")
        self.line(panel.left, panel.top, panel.left, panel.bottom, black)
        self.line(panel.left, panel.bottom, panel.right, panel.bottom, black)
        self.text(panel.left, panel.top - 12, titles[0], extra=' font-weight="bold"')
        self.text(panel.right, panel.bottom + 38, titles[1], "end")

    def curve(self, panel, style, points):
        """Draws a line with gaps where a value is None."""
        pieces = [[]]
        for x, value in points:
            if value is None:
                pieces.append([])
            else:
                pieces[-1].append(f"{place_x(panel, x):.1f},{place_y(panel, value):.1f}")
        for piece in filter(None, pieces):
            self.parts.append(f'<polyline fill="none" stroke="{style.colour}" '
                              f'stroke-width="{style.width}"{_dashes(style)} '
                              f'points="{" ".join(piece)}"/>')

    def dots(self, panel, colour, points):
        """Draws hollow circles."""
        for x, value in points:
            self.parts.append(f'<circle cx="{place_x(panel, x):.1f}" '
                              f'cy="{place_y(panel, value):.1f}" r="{DOT}" fill="#ffffff" '
                              f'stroke="{colour}" stroke-width="1.6"/>')

    def bar(self, panel, left, width, value, colour, filled):
        """Draws a bar from the bottom of the panel to `value`."""
        top = place_y(panel, value)
        fill = colour if filled else "#ffffff"
        self.parts.append(f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" '
                          f'height="{panel.bottom - top:.1f}" fill="{fill}" stroke="{colour}"/>')

    def legend(self, x, y, entries):
        """Draws a line and a text for each (style, text)."""
        for style, text in entries:
            self.line(x, y - 4, x + 35, y - 4, style)
            self.text(x + 43, y, text)
            y += LEGEND_ROW

    def svg(self, title):
        return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width}" '
                f'height="{self.height}" viewBox="0 0 {self.width} {self.height}" '
                f'font-family="sans-serif" font-size="13" '
                f'fill="#222222">\n<title>{escape(title)}</title>\n'
                f'<rect width="{self.width}" height="{self.height}" fill="#ffffff"/>\n'
                + "\n".join(self.parts) + "\n</svg>\n")


def _dashes(style):
    return f' stroke-dasharray="{style.dash}"' if style.dash else ""
