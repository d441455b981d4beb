"""A DeepSpeed job worth protecting: a GPT, the text it reads, and the script that trains it."""
