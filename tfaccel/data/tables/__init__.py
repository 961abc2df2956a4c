"""Tables: columns, their encoding, and batches of rows."""
