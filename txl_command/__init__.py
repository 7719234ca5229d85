"""What runs before txl_keras is imported, which takes seconds."""
