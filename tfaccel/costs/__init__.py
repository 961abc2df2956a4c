"""What a traced graph computes: operations and bytes, overall and by layer."""
