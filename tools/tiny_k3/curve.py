#!/usr/bin/env python3
"""curve.py LOG OUT.svg: the losses of a training, with a logarithmic scale."""
import argparse
import json
import math

WIDTH, HEIGHT, LEFT, BOTTOM = 720, 360, 60, 40
LOWEST, HIGHEST = 0.04, 10.0


def point(progress, loss):
    share = (math.log(loss) - math.log(LOWEST)) / (math.log(HIGHEST) - math.log(LOWEST))
    return LEFT + progress * (WIDTH - LEFT - 20), HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - 20)


def line(entries, key, color, name, at):
    points = " ".join("%.1f,%.1f" % point(e["progress"], max(LOWEST, e[key])) for e in entries if e[key] > 0)
    return (f'<polyline fill="none" stroke="{color}" stroke-width="1.5" points="{points}"/>'
            f'<text x="{WIDTH - 250}" y="{at}" fill="{color}">{name}</text>')


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("log")
    parser.add_argument("out")
    args = parser.parse_args()
    with open(args.log) as file:
        entries = [json.loads(text) for text in file]
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
             f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>']
    for loss in (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10):
        x, y = point(0, loss)
        parts.append(f'<line x1="{x}" y1="{y:.1f}" x2="{WIDTH - 20}" y2="{y:.1f}" stroke="#ddd"/>'
                     f'<text x="{x - 8}" y="{y + 4:.1f}" text-anchor="end">{loss}</text>')
    for progress in (0, 0.2, 0.4, 0.6, 0.8, 1):
        x, y = point(progress, LOWEST)
        parts.append(f'<text x="{x:.1f}" y="{y + 18:.1f}" text-anchor="middle">{progress:.0%}</text>')
    parts.append(line(entries, "loss", "#888", "training: all tokens, weighted", 40))
    parts.append(line(entries, "held_out", "#c33", "held out: tokens of answers", 58))
    parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 6}" text-anchor="middle">share of the training</text></svg>')
    with open(args.out, "w") as file:
        file.write("\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
