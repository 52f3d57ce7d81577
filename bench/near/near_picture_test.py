"""The picture of near-storage shows what docs/benchmarks.md has."""

import unittest

import near_picture


class NearPictureTest(unittest.TestCase):
    def setUp(self):
        self.found = near_picture.points(near_picture.PAGE.read_text(encoding="utf-8"))

    def test_finds_every_line_of_the_section(self):
        a5000 = self.found["A5000"]
        self.assertEqual(set(a5000), set(near_picture.COLOURS))
        for curve in a5000.values():
            self.assertEqual([p.devices for p in curve], [1, 2, 4, 6, 8, 10, 16, 20])
            for point in curve:
                self.assertLess(abs(point.seconds / point.flows - 1), 0.2)
        self.assertIsNone(a5000["ours, sealed"][0].paper)
        self.assertGreater(a5000["SU+O"][0].paper, 50)

    def test_picture_is_up_to_date(self):
        self.assertEqual(near_picture.draw(self.found),
                         near_picture.PICTURE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    unittest.main()
