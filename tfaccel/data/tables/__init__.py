"""Tabular datasets: columns, their encoding, and batches of rows.

Files are read by pyarrow; for the choice see `tfaccel.data.tables.files`. Why not `keras.utils.FeatureSpace`: it puts
string lookups into the model, which LiteRT cannot run, and handles neither missing values nor dates. `TableEncoding` is
plain JSON, and the model contains built-in numeric layers only.
"""
