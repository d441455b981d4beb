"""The paper's figures, a module a figure."""
