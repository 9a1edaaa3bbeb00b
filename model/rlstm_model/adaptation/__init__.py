"""Dynamic evaluation: sessions whose fast weights follow their text (docs/adaptation.md)."""
