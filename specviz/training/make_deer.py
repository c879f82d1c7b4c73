"""``train deer``: placeholder"""
