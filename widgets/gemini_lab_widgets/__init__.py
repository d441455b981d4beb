"""Views, pictures and controls of a run, for notebooks, browsers and saved pages."""
