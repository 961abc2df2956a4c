"""The suite behind `tfaccel benchmark gpu`: steps in processes of their own, whose results are files."""
