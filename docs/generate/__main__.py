"""`python -m docs.generate`, in the repository's root: writes the generated files, and prints those that changed."""

from docs.generate.pages import ROOT, generated_files

for name, text in generated_files():
    path = ROOT / name
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(name)
