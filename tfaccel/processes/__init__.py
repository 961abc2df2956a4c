"""Child processes: how they are started, spoken to, limited in time, ended, and how they ended."""
