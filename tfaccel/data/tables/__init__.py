"""Tabular datasets: columns, their encoding, and batches of rows.

Why not pandas and `keras.utils.FeatureSpace`: `pandas.read_csv` fills short lines with missing values without a word,
where a table for training must name the line; and it guesses column types from each file, so that new rows could be
encoded differently. `FeatureSpace` puts string lookups into the model, which LiteRT cannot run, and handles neither
missing values nor dates. `TableEncoding` is plain JSON, and the model contains built-in numeric layers only.
"""
