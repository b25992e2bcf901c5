"""Small language models spun from your own text, on your own machine."""
